"""What expansion takes of a bundle: the sparse index, the whole bundle, and the time of `index`, with it and without.

    python -m research.quality.expansion_size RECIPE docs/results/expansion-size.json [--turns 3]

RECIPE is one of words whose corpus is encoded and whose tables are there. Both kinds are indexed in turns, after a turn
that is not measured; seconds and processor seconds are medians, and terms of a document are `index`'s own figures.
"""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from lightretriever.artifacts.errors import RecipeError
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import median, origin, write_json

__all__ = ["main", "measure"]


def measure(recipe: Path, turns: int, folder: Path) -> list[dict[str, Any]]:
    """Index with and without expansion in turns, below `folder`: one row each. Raises RecipeError if `index` fails."""
    content: dict[str, Any] = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    kinds = {"expanded": content.get("expand") or {}, "words alone": False}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    for turn in range(turns + 1):
        for name, expand in kinds.items():
            file, bundle = folder / f"{name}.yaml", folder / name
            file.write_text(yaml.safe_dump(content | {"expand": expand, "output": str(bundle)}), encoding="utf-8")
            row = _index(file, bundle, recipe.parent)
            if turn:
                found[name].append(row)
    fixed = ("documents", "terms", "added", "sparse_bytes", "bytes")
    return [
        {"name": name, **{key: rows[0][key] for key in fixed}}
        | {key: median([row[key] for row in rows]) for key in ("seconds", "cpu_s")}
        for name, rows in found.items()
    ]


def _index(recipe: Path, bundle: Path, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "lightretriever.service.cli", "index", str(recipe), "--overwrite", "--json"]
    with (recipe.parent / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        summary: dict[str, Any] = json.loads(log.read() or "{}")
    if process.returncode:
        raise RecipeError(f"{recipe}: can't be indexed: {summary.get('error', {}).get('message')}")
    sparse = sum(file.stat().st_size for file in (bundle / "lucene").iterdir())
    return {**summary, "sparse_bytes": sparse, "cpu_s": used.ru_utime + used.ru_stime}


@program(
    option("recipe", Path, "recipe of words whose corpus is encoded"),
    option("result", Path, "JSON file to write"),
    option("--turns", 3),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    with TemporaryDirectory(prefix="expansion-") as folder:
        rows = measure(given.recipe, given.turns, Path(folder))
    write_json(given.result, {**origin(), "command": given.command, "turns": given.turns, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
