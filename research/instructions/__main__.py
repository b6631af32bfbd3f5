"""Count the instructions that each stage of a search takes, by valgrind's callgrind.

    python -m research.instructions BUNDLE --queries FOLDER

A count hardly changes from run to run, so it shows a change of one percent that times on a busy machine hide. It is no
time: it knows neither caches nor memory. Java doesn't run under valgrind, so the stages are those without Lucene; what
`fuse` fuses are the dense hits of two queries. Takes about a minute; needs valgrind on the PATH.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.process import python

from research.instructions.stages import NOTHING

__all__ = ["counts_of", "main"]

_DUMP: Final = "desc: Trigger: dump "
_SUMMARY: Final = "summary: "


def counts_of(bundle: Path, queries: Path, count: int, seed: int = 0) -> dict[str, float]:
    """Give the instructions per query by stage, without those of counting itself. LoadError without valgrind."""
    if shutil.which("callgrind_control") is None:
        raise LoadError("valgrind is not installed.", remedy="Install it, such as by: apt-get install valgrind")
    with TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        child = python("research.instructions.stages", str(bundle), str(queries), str(count), str(seed))
        run = subprocess.run([*valgrind, *child], capture_output=True, text=True, check=False)
        if run.returncode:
            raise LoadError(f"valgrind ended with {run.returncode}: {run.stderr.strip()[-600:]}")
        files = sorted(Path(folder).glob("out.*"), key=lambda file: int(file.suffix[1:]))
        totals = dict(map(_total, files))
    idle = totals.pop(NOTHING)
    return {stage: (total - idle) / count for stage, total in totals.items()}


def _total(file: Path) -> tuple[str, int]:
    """Read the stage's name and its instructions from a file that callgrind dumped."""
    lines = file.read_text(encoding="utf-8").splitlines()
    found = {part: next(line for line in lines if line.startswith(part)) for part in (_DUMP, _SUMMARY)}
    return found[_DUMP].removeprefix(_DUMP), int(found[_SUMMARY].removeprefix(_SUMMARY))


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print; returns the exit status."""
    parser = argparse.ArgumentParser(description="The instructions of each stage of a search, by valgrind.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--count", type=int, default=100, help="queries to count with (100)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    given = parser.parse_args(arguments)
    try:
        Bundle.open(given.bundle)
        asked = min(given.count, len(read_texts(given.queries, given.seed)))
        counts = counts_of(given.bundle, given.queries, asked, given.seed)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for stage, instructions in counts.items():
        print(f"{stage:10s} {instructions:>14,.0f} instructions a query")
    return 0


if __name__ == "__main__":
    sys.exit(main())
