"""Measure what `build` takes besides the models' reading, with several versions of the program in one run.

    python -m research.scale.build CORPUS MODEL --documents 20000 --results docs/results/build.json \\
        --side before OLD/.venv/bin/python --side after .venv/bin/python

CORPUS is a file of JSON lines, of which the first documents are taken, MODEL a folder of static embeddings
(`research/models/static.py`), which take next to no time. A side is a name and an interpreter that has the program.
With `--words N`, the documents are drawn instead: N consecutive words of any document's text, at random.

whole     `build` from nothing but the shards of the models, which `encode` makes before, unmeasured
changed   `build` again over a corpus in which every hundredth line is new, encoding it included; not with `--once`

Processor time and peak memory are those of the process (`getrusage`); its own memory (`own_mib`) is the peak without
mapped files, read five times a second (Linux). Disk is the work directory without the shards.
The sides take turns, each figure is the median of the turns, and every turn's bundles are compared with the first
side's: tables and dense index byte by byte, the sparse index term by term, as Lucene draws ids for its files.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, Final

import numpy as np
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import commit, median, origin, write_json

__all__ = ["compare", "differences", "main", "read_documents"]

_PROGRAM: Final = "from lightretriever.service.cli import main; main()"
_EVERY: Final = 100
_READ: Final = 4096
_FIGURES: Final = ("wall_s", "cpu_s", "peak_mib", "own_mib", "disk_mib")
_LOOK_S: Final = 0.2

Figures = dict[str, float]
Lines = Callable[[], Iterator[str]]


def compare(
    lines: Lines, model: Path, sides: Sequence[tuple[str, Path]], work: Path, *, turns: int = 1, once: bool = False
) -> list[dict[str, Any]]:
    """Measure all sides in turns below the folder `work`: one row each. Raises LoadError if a side fails."""
    kinds = ["whole"] if once else ["whole", "changed"]
    found: dict[str, dict[str, list[Figures]]] = {name: {kind: [] for kind in kinds} for name, _ in sides}
    differ = set[str]()
    for turn in range(turns):
        for name, python in sides:
            folder = work / f"{name}-{turn}"
            for kind, figures in _turn(folder, python, model, lines, kinds).items():
                found[name][kind].append(figures)
            shutil.rmtree(folder / "work")
            first = work / f"{sides[0][0]}-{turn}"
            for kind in kinds if folder != first else ():
                differ.update(differences(first / kind, folder / kind))
        for name, _ in sides:
            shutil.rmtree(work / f"{name}-{turn}")
    documents = sum(1 for _ in lines())
    return [
        {"name": name, "commit": commit(python.parent), "documents": documents, "differ": sorted(differ)}
        | {
            kind: {one: median([row[one] for row in figures]) for one in _FIGURES}
            for kind, figures in found[name].items()
        }
        for name, python in sides
    ]


def read_documents(corpus: Path, count: int, words: int = 0) -> Iterator[str]:
    """Read the first `count` lines of a corpus or, with `words`, draw `count` documents of so many consecutive words of
    its texts, always the same ones. Only the corpus is kept in memory."""
    with corpus.open(encoding="utf-8") as file:
        if not words:
            yield from islice(file, count)
            return
        texts = [json.loads(line)["text"].split() for line in file]
    texts = [text for text in texts if len(text) >= words]
    random = np.random.default_rng(0)
    for row in range(count):
        text = texts[random.integers(len(texts))]
        start = random.integers(len(text) - words + 1)
        yield json.dumps({"_id": str(row), "text": " ".join(text[start : start + words])}) + "\n"


def differences(one: Path, other: Path) -> list[str]:
    """Compare two bundles: files that differ, but for the manifest, which has a date, and those of Lucene, whose
    documents, terms and impacts are compared instead."""
    names = [sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()) for path in (one, other)]
    found = sorted(set(names[0]) ^ set(names[1]))
    plain = [name for name in names[0] if not name.startswith(("lucene/", "manifest.json")) and name not in found]
    found += [name for name in plain if (one / name).read_bytes() != (other / name).read_bytes()]
    with Bundle.open(one).sparse() as first, Bundle.open(other).sparse() as second:
        for start in range(0, first.count, _READ):
            stop = min(start + _READ, first.count)
            ordinals = np.arange(start, stop)
            indptr, spelt, terms, impacts = first.rows(start, stop)
            others, other_spelt, *rest = second.rows(start, stop)
            pairs = ((indptr, others), (terms, rest[0]), (impacts, rest[1]))
            equal = spelt == other_spelt and all(np.array_equal(one, other) for one, other in pairs)
            if not equal or first.documents(ordinals) != second.documents(ordinals):
                return [*found, "lucene"]
    return found


def _turn(folder: Path, python: Path, model: Path, lines: Lines, kinds: Sequence[str]) -> dict[str, Figures]:
    """Build a side's bundles of these kinds below `folder`."""
    folder.mkdir(parents=True)
    _write(folder, model, lines())
    _run(python, "encode", folder)
    shards = folder / "work" / "encode"
    kept = shutil.move(shards, folder / "kept")
    shutil.rmtree(folder / "work")
    (folder / "work").mkdir()
    shutil.move(kept, shards)
    found = {}
    for kind in kinds:
        if kind == "changed":
            _write(folder, model, (_changed(line) if row % _EVERY == 0 else line for row, line in enumerate(lines())))
        found[kind] = _run(python, "build", folder)
        shutil.move(folder / "bundle", folder / kind)
    return found


def _changed(line: str) -> str:
    record = json.loads(line)
    return json.dumps({**record, "text": f"{record['text']} This sentence is new."}) + "\n"


def _write(folder: Path, model: Path, lines: Iterator[str]) -> None:
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(lines)
    recipe = {
        "name": "build",
        "model": {"path": str(model.resolve()), "device": "cpu"},
        "corpus": {"path": "corpus.jsonl", "name": "passages"},
        "encode": {"shard_size": 8192},
        "distil": {"sentences": False, "epochs": 0},
        "work": "work",
        "output": "bundle",
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def _run(python: Path, command: str, folder: Path) -> Figures:
    """Run a command of the program over the recipe in a folder. Raises LoadError if it fails."""
    options = ["--overwrite"] if command == "build" else []
    began = perf_counter()
    program = [str(python), "-P", "-c", _PROGRAM, command, "recipe.yaml", *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(program, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)
    own = 0.0
    while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
        own = max(own, _own_mib(process.pid))
        sleep(_LOOK_S)
    _, status, used = waited
    wall = perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        reason = (folder / "log").read_text(encoding="utf-8")[-500:]
        raise LoadError(f"{python} can't {command}: {reason}", remedy="Give an interpreter that has the program.")
    sizes = [file.stat().st_size for file in (folder / "work").rglob("*") if file.is_file()]
    shards = [file.stat().st_size for file in (folder / "work" / "encode").rglob("*") if file.is_file()]
    disk = (sum(sizes) - sum(shards)) / 2**20
    return dict(zip(_FIGURES, (wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10, own, disk), strict=True))


def _own_mib(process: int) -> float:
    """The memory of a process without mapped files, now; 0 when it has ended."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 2**10 if found else 0.0


@program(
    option("corpus", Path, "file of JSON lines, not packed"),
    option("model", Path, "folder of static embeddings"),
    option("--side", None, nargs=2, metavar=("NAME", "PYTHON"), action="append", required=True),
    option("--documents", 20_000),
    option("--words", 0, "of each document, drawn from the corpus; 0: the corpus's own documents"),
    option("--turns", 1),
    option("--once", False, "without the build of a changed corpus"),
    option("--results", Path),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    sides = [(name, Path(os.path.abspath(python))) for name, python in given.side]  # noqa: PTH100 -- keeps links
    lines = partial(read_documents, given.corpus, given.documents, given.words)
    with TemporaryDirectory(prefix="build-") as work:
        rows = compare(lines, given.model, sides, Path(work), turns=given.turns, once=given.once)
    about = {**origin(), "command": given.command, "turns": given.turns, "words": given.words}
    write_json(given.results, {**about, "sides": rows})


if __name__ == "__main__":
    sys.exit(main())
