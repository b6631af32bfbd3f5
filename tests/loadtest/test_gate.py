"""The gate against slowdowns: two versions of the code, of which one is made slower on purpose."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lightretriever.loadtest import gate
from lightretriever.loadtest.stages import STAGES
from lightretriever.loadtest.wire import LoadError

ROOT = Path(__file__).resolve().parents[2]
QUERIES = ["music player", "a small library for numbers", "terminal", "text documents"] * 2


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for package in ("artifacts", "loadtest", "service"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_stage_that_became_slower_is_found(tree: Path, tiny_path: Path) -> None:
    fusion = tree / "service" / "fusion.py"
    text = fusion.read_text()
    slowed = text.replace(
        "    return CandidateTable(*kernels.align(legs))\n",
        "    import time; time.sleep(0.05)\n    return CandidateTable(*kernels.align(legs))\n",
    )
    assert slowed != text
    fusion.write_text(slowed)
    stages = {stage.name: stage for stage in gate.compare(tree, ROOT, tiny_path, QUERIES, turns=4)}
    assert list(stages) == list(STAGES)
    assert stages["fuse"].slower
    assert stages["fuse"].ratio > 2
    assert all(len(stage.now) == len(stage.then) == 4 for stage in stages.values())


def test_a_version_that_can_not_search_is_an_error(tree: Path, tiny_path: Path) -> None:
    (tree / "service" / "engine.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(LoadError, match="could not search"):
        gate.compare(ROOT, tree, tiny_path, QUERIES, turns=1)


def test_noise_and_trifles_are_no_slowdown() -> None:
    then = [100e-6] * 10
    assert gate.Stage("a", [140e-6] * 8 + [90e-6] * 2, then).slower
    assert not gate.Stage("a", [140e-6] * 7 + [90e-6] * 3, then).slower
    assert not gate.Stage("a", [120e-6] * 10, then).slower
    assert not gate.Stage("a", [8e-6] * 10, [4e-6] * 10).slower  # twice as long, but no matter
    assert gate.Stage("a", [140e-6] * 10, then).ratio == pytest.approx(1.4)


def test_what_is_slower_once_is_measured_again() -> None:
    def stages(*slower: str) -> list[gate.Stage]:
        return [gate.Stage(name, [(200e-6 if name in slower else 100e-6)] * 5, [100e-6] * 5) for name in "abc"]

    def verdict(*measured: list[gate.Stage]) -> tuple[list[str], int]:
        left = list(measured)
        return gate.slower_again(lambda: left.pop(0)), len(left)

    assert verdict(stages(), stages("a")) == ([], 1)  # not asked again
    assert verdict(stages("a", "b"), stages("b", "c")) == (["b"], 0)
    assert verdict(stages("a"), stages()) == ([], 0)
    assert verdict(stages("c"), stages("a", "b")) == ([], 0)


def test_a_commit_is_unpacked_or_missed(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for package in ("artifacts", "loadtest", "service"):
        (repository / package).mkdir(parents=True)
        (repository / package / "a.py").write_text("then\n")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    (repository / "service" / "a.py").write_text("now\n")
    gate.unpack_commit("HEAD", tmp_path / "out", repository)
    assert (tmp_path / "out" / "service" / "a.py").read_text() == "then\n"
    with pytest.raises(LoadError, match="Fetch the whole history"):
        gate.unpack_commit("0" * 40, tmp_path / "none", repository)


def test_the_compiled_part_of_a_commit_is_its_own(tmp_path: Path) -> None:
    """Other sources are compiled; the checkout's library is taken for the same."""
    repository = tmp_path / "repository"
    shutil.copytree(ROOT / "artifacts" / "cpp", repository / "artifacts" / "cpp")
    shutil.copy(ROOT / "setup.py", repository)
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    git = ["git", "-C", str(repository)]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    gate.unpack_commit("HEAD", tmp_path / "same", repository)
    (ours,) = (ROOT / "artifacts").glob("kernels.*.so")
    assert (tmp_path / "same" / "artifacts" / ours.name).read_bytes() == ours.read_bytes()
    (repository / "artifacts" / "cpp" / "kernels.cpp").write_text("#error none\n")
    subprocess.run([*git, *identity, "commit", "-aqm", "second"], check=True)
    with pytest.raises(LoadError, match="can't be compiled"):
        gate.unpack_commit("HEAD", tmp_path / "broken", repository)
    small = '#include <pybind11/pybind11.h>\nPYBIND11_MODULE(kernels, module) { module.attr("FLOOR") = 7; }\n'
    (repository / "artifacts" / "cpp" / "kernels.cpp").write_text(small)
    subprocess.run([*git, *identity, "commit", "-aqm", "third"], check=True)
    gate.unpack_commit("HEAD", tmp_path / "other", repository)
    code = "import importlib; print(importlib.import_module('artifacts.kernels').FLOOR)"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, cwd=tmp_path / "other", capture_output=True, check=True, text=True).stdout == "7\n"
