"""Files of results: written whole, with machine, date and commit."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.evaluation.evaluate import environment
from lightretriever.artifacts.files.workdir import write_atomically

ROOT: Final = Path(__file__).resolve().parents[1]


def write_json(file: Path, content: object) -> None:
    """Write a file of results atomically."""
    write_atomically(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def machine_name(machine: Mapping[str, Any]) -> str:
    """Return the machine of `environment` in a few words."""
    return f"{machine['processor']}, {machine['cores']} cores"


def origin() -> dict[str, str]:
    """Return machine, date and commit of a measurement that ends now."""
    here = environment()
    return {"machine": machine_name(here["machine"]), "date": here["date"], "commit": _commit()}


def _commit() -> str:
    """Return the checkout's commit, with a + if files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
