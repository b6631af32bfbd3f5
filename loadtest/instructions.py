"""Instructions that the stages of a search take, by valgrind: a count that noise and other processes don't change.

    python -m lightretriever.loadtest.instructions BUNDLE --queries FOLDER --results docs/results/speed.json
    python -m lightretriever.loadtest.instructions BUNDLE --queries FOLDER --baseline COMMIT

The second form counts with the code of a commit, too, and exits with status 1 if a stage takes more than `LIMIT` times
as many instructions as it did then, and more than `LEAST` more. Each query is encoded several times, so its words are
known.

Counted are the stages that need no Java, whose compiler works beside the searches and makes of them, sooner or later,
something else. Valgrind knows no AVX-512: libraries take their ways for AVX2, and Faiss and NumPy, which have more of
them, take more instructions here than they do without it. A count says nothing of waiting for memory.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.loadtest.gate import unpack_commit
from lightretriever.loadtest.instruction_worker import ROUNDS
from lightretriever.loadtest.process import ROOT
from lightretriever.loadtest.record import record
from lightretriever.loadtest.stage_calls import Inputs
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.search.engine import SearchEngine

__all__ = ["LEAST", "LIMIT", "count", "main", "report"]

LIMIT: Final = 1.05
LEAST: Final = 1000
_ALONE: Final = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def count(tree: Path, bundle: Path, inputs: Inputs) -> dict[str, int]:
    """Instructions per query by stage, with the code in the source tree `tree`.

    Raises LoadError without valgrind, and where the code can't do the stages.
    """
    if shutil.which("valgrind") is None:
        raise LoadError("valgrind is not installed.", remedy="Install the package valgrind.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "inputs.json"
        file.write_text(json.dumps(inputs.to_json()), encoding="utf-8")
        valgrind = ["valgrind", "--quiet", "--tool=cachegrind", "--cache-sim=no"]
        worker = [sys.executable, "-m", "lightretriever.loadtest.instruction_worker", str(bundle.absolute()), str(file)]
        done = subprocess.run(
            [*valgrind, f"--cachegrind-out-file={folder}/%p", *worker],
            cwd=tree,
            env={**os.environ, **_ALONE, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LoadError(f"the code in {tree} could not be counted: {done.stderr.strip()}")
        return {
            row["stage"]: round(_difference(folder, row["forks"]) / len(inputs.texts))
            for row in map(json.loads, done.stdout.splitlines())
        }


def _difference(folder: Path, forks: Sequence[int]) -> float:
    """Instructions of one round, of the two forks' totals."""
    few, many = (
        int(re.findall(r"^summary: (\d+)", (folder / str(fork)).read_text(), re.MULTILINE)[0]) for fork in forks
    )
    return (many - few) / (ROUNDS[1] - ROUNDS[0])


def report(now: Mapping[str, int], then: Mapping[str, int]) -> list[str]:
    """Print a line for every stage, and give the names of those that take more instructions than they may."""
    worse = []
    for stage, instructions in now.items():
        line = f"{stage:14s} {instructions:>10,}"
        if stage in then:
            ratio = instructions / then[stage]
            more = ratio > LIMIT and instructions > then[stage] + LEAST
            worse += [stage] * more
            line += f" {then[stage]:>10,}  {ratio:5.3f}{'  MORE' * more}"
        print(line)
    return worse


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and compare or record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        with SearchEngine.open(Bundle.open(given.bundle)) as engine:
            inputs = Inputs.of(engine, _texts(engine, given.queries, given.count))
        now = count(ROOT, given.bundle, inputs)
        then: dict[str, int] = {}
        if given.baseline is not None:
            with tempfile.TemporaryDirectory() as folder:
                unpack_commit(given.baseline, Path(folder))
                then = count(Path(folder), given.bundle, inputs)
    except (LightRetrieverError, LoadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    worse = report(now, then)
    if given.results is not None:
        facts = {"unit": "instructions", "documents": engine.bundle.manifest.documents, "queries": len(inputs.texts)}
        rows = [{"key": "instructions", "setting": stage, "value": value, **facts} for stage, value in now.items()]
        command = typed_command(["python", "-m", "lightretriever.loadtest.instructions", *(arguments or sys.argv[1:])])
        record(given.results, rows, command, whole=("instructions",))
    return int(bool(worse))


def _texts(engine: SearchEngine, queries: Path | None, count: int) -> list[str]:
    if queries is None:
        return engine.parts.documents.probes(count)
    texts = list(read_queries(find_file(queries, "queries")).values())
    random.Random(0).shuffle(texts)
    return texts[:count]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Instructions that the stages of a search take.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, help="folder with queries.jsonl(.gz) (words of the documents)")
    parser.add_argument("--count", type=int, default=20, help="queries to count with (20)")
    parser.add_argument("--baseline", help="commit to compare with")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
