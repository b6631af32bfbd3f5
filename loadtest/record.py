"""Facts of a result file: times, machine, date and commit."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.evaluation.report import environment
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = [
    "ROOT",
    "commit",
    "four_digits",
    "latency",
    "machine_name",
    "median",
    "origin",
    "write_json",
]

ROOT: Final = Path(__file__).resolve().parents[1]


def latency(seconds: npt.ArrayLike, scale: float) -> dict[str, float]:
    """Give p50, p95 and p99 of times, multiplied by `scale` (1e6 for microseconds), to four digits."""
    values = np.percentile(np.asarray(seconds, dtype=np.float64), [50, 95, 99]) * scale
    return dict(zip(("p50", "p95", "p99"), map(four_digits, values), strict=True))


def four_digits(value: float) -> float:
    """Round to four significant digits, the precision of our measurements."""
    return float(f"{value:.4g}")


def median(values: Sequence[float] | npt.NDArray[np.floating]) -> float:
    """Give the median, to four digits."""
    return four_digits(float(np.median(values)))


def write_json(file: Path, content: object) -> None:
    """Write a file of results atomically."""
    write_atomically(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def machine_name(machine: Mapping[str, Any]) -> str:
    """Give the machine of `environment` in a few words."""
    return f"{machine['processor']}, {machine['cores']} cores"


def origin() -> dict[str, str]:
    """Give the machine, date and commit of a measurement that ends now."""
    here = environment()
    return {"machine": machine_name(here["machine"]), "date": here["date"], "commit": commit()}


def commit(folder: Path = ROOT) -> str:
    """Give the commit of a folder's checkout, with a + if files differ from it; "unknown" outside a checkout."""
    try:
        words = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
