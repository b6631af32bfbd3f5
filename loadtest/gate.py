"""The gate against slowdowns: every stage of a search, now and at the commit in `loadtest/baseline`, side by side.

    python -m lightretriever.loadtest.gate

Both versions of the code open the demo bundle, each in a process of its own, and search the same queries in turns, a
few at a time: whatever disturbs the machine disturbs both. A stage is slower when it takes more than `LIMIT` times as
long in most of the turns, which noise does not do, and by more than `LEAST_US`. Times of other days or machines are not
compared. Where a process' memory happens to lie can make a stage a quarter slower for as long as it lives, so what
seems slower is measured once more, in new processes. Exit status 1 names the stages that were slower both times.

A slowdown that is meant, and every gain that should not be lost again, moves the baseline: write the commit's hash into
`loadtest/baseline`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Final, Self, cast

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.loadtest.process import ROOT
from lightretriever.loadtest.stages import STAGES
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.search.documents import Documents

__all__ = ["BASELINE", "LEAST_US", "LIMIT", "Stage", "compare", "main", "slower_again", "unpack_commit"]

BASELINE: Final = ROOT / "loadtest" / "baseline"
LIMIT: Final = 1.3
LEAST_US: Final = 5.0
_SHARE: Final = 0.8  # of the turns
_TURNS: Final = 15
_QUERIES: Final = 40

Medians = Mapping[str, float]


@dataclass(frozen=True)
class Stage:
    """One stage: its median seconds in every turn, now and then."""

    name: str
    now: list[float]
    then: list[float]

    @property
    def ratio(self) -> float:
        """Median of the turns' ratios, now over then."""
        return float(np.median(np.divide(self.now, self.then)))

    @property
    def slower(self) -> bool:
        """Whether the stage became slower."""
        now, then = np.array(self.now), np.array(self.then)
        worse = (now > LIMIT * then) & (now > then + LEAST_US / 1e6)
        return bool(worse.mean() >= _SHARE)


class _Worker:
    """A version of the code in a process: asks for medians of a slice of the queries."""

    def __init__(self, tree: Path, bundle: Path, queries: Path) -> None:
        command = [sys.executable, "-m", "lightretriever.loadtest.stage_worker", str(bundle), str(queries)]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        self._tree = tree
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._questions, self._answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)

    def answer(self) -> Medians:
        """The next line. Raises LoadError when the process ended instead."""
        line = self._answers.readline()
        if not line:
            raise LoadError(f"the code in {self._tree} could not search (exit status {self._process.wait()}).")
        answer: dict[str, float] = json.loads(line)
        return answer

    def measure(self, first: int, last: int) -> Medians:
        """Median seconds by stage of the queries from `first` to `last`, exclusive."""
        self._questions.write(f"{first} {last}\n")
        self._questions.flush()
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def compare(now: Path, then: Path, bundle: Path, queries: Sequence[str], turns: int = _TURNS) -> list[Stage]:
    """Time all stages of both versions of the code, source trees `now` and `then`, in `turns` turns.

    Raises LoadError where one of them can't search the bundle.
    """
    times: dict[Path, list[Medians]] = {now: [], then: []}
    size = max(1, len(queries) // turns)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "queries.json")
        file.write_text(json.dumps(list(queries)), encoding="utf-8")
        with _Worker(now, bundle, file) as ours, _Worker(then, bundle, file) as theirs:
            ours.answer(), theirs.answer()  # both are warm
            for turn in range(turns):
                pair = ((now, ours), (then, theirs))
                for tree, worker in pair if turn % 2 else reversed(pair):
                    times[tree].append(worker.measure(turn * size, (turn + 1) * size))
    stages = [stage for stage in STAGES if stage in times[then][0]]
    return [Stage(stage, *([turn[stage] for turn in times[tree]] for tree in (now, then))) for stage in stages]


def slower_again(measure: Callable[[], Sequence[Stage]]) -> list[str]:
    """Names of the stages that are slower in what `measure` gives, and in what it gives a second time, for which it is
    asked only if there are any."""
    slower = [stage.name for stage in measure() if stage.slower]
    if not slower:
        return []
    print(f"once more, in new processes: {', '.join(slower)}")
    return [stage.name for stage in measure() if stage.slower and stage.name in slower]


def unpack_commit(commit: str, folder: Path, repository: Path = ROOT) -> None:
    """Put the code of a commit into `folder`, ready to run. Raises LoadError when the checkout doesn't have it, or when
    its compiled part can't be built."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run([*git, "ls-tree", "--name-only", commit], capture_output=True, text=True, check=False)
    parts = sorted({"artifacts", "loadtest", "service", "setup.py"}.intersection(listed.stdout.split()))
    done = subprocess.run([*git, "archive", commit, *parts], capture_output=True, check=False)
    if listed.returncode or done.returncode:
        raise LoadError(f"commit {commit} can't be read: {listed.stderr.strip()}. Fetch the whole history.")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    if (folder / "setup.py").exists():
        _compile(folder)


def _sources(tree: Path) -> dict[Path, bytes]:
    files = [tree / "setup.py", *(tree / "artifacts" / "cpp").glob("*.?pp")]
    return {file.relative_to(tree): file.read_bytes() for file in files}


def _compile(tree: Path) -> None:
    """Build the compiled part of a source tree, or take the checkout's, if it is that of the same source."""
    library = ROOT / "artifacts" / f"kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    if library.exists() and _sources(tree) == _sources(ROOT):
        shutil.copy(library, tree / "artifacts")
        return
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadError(f"the code in {tree} can't be compiled: {done.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and report; returns the exit status."""
    parser = argparse.ArgumentParser(description="Are the stages of a search as fast as at the baseline?")
    parser.add_argument(
        "--baseline", default=BASELINE.read_text(encoding="ascii").strip(), help="commit to compare with"
    )
    parser.add_argument("--bundle", type=Path, default=ROOT / "demo" / "bundle", help="bundle to search (the demo's)")
    parser.add_argument("--turns", type=int, default=_TURNS, help=f"turns of {_QUERIES} searches each ({_TURNS})")
    given = parser.parse_args(arguments)
    try:
        with Bundle.open(given.bundle).sparse() as index:
            queries = Documents(index).probes(given.turns * _QUERIES)
        with tempfile.TemporaryDirectory() as folder:
            unpack_commit(given.baseline, Path(folder))

            def measure() -> list[Stage]:
                stages = compare(ROOT, Path(folder), given.bundle, queries, given.turns)
                _print(stages, given.baseline)
                return stages

            slower = slower_again(measure)
    except (LightRetrieverError, LoadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if slower:
        print(f"slower than at the baseline, twice: {', '.join(slower)}")
    return int(bool(slower))


def _print(stages: Sequence[Stage], baseline: str) -> None:
    print(f"{'stage':10s} {'now':>9s} {'then':>9s}  ratio   (µs, medians; then: {baseline[:12]})")
    for stage in stages:
        medians = [float(np.median(values)) * 1e6 for values in (stage.now, stage.then)]
        print(f"{stage.name:10s} {medians[0]:9.1f} {medians[1]:9.1f}  {stage.ratio:5.2f}{'  SLOWER' * stage.slower}")


if __name__ == "__main__":
    sys.exit(main())
