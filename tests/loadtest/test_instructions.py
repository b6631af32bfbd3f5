"""Instruction counts by the real valgrind, on the tiny bundle."""

import json
import shutil
from pathlib import Path

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest import instructions
from lightretriever.loadtest.stage_calls import Inputs
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["tokenize", "encode_sparse", "encode_dense", "encode", "dense", "fuse", "serialise"]


@pytest.fixture
def inputs(tiny_bundle: Bundle) -> Inputs:
    with SearchEngine.open(tiny_bundle, Settings(warm_up_queries=3)) as engine:
        engine.warm_up()
        return Inputs.of(engine, ["music player", "a small library for numbers"])


@pytest.mark.slow
def test_more_work_is_found_and_the_rest_is_counted_alike(
    tmp_path: Path, tiny_path: Path, inputs: Inputs, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    for package in ("artifacts", "loadtest", "service"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    fusion = tree / "service" / "fusion.py"
    text = fusion.read_text(encoding="utf-8")
    slow = text.replace(
        "    _check_weights(table, weights)\n",
        "    _check_weights(table, weights)\n    sum(range(50_000))\n",
    )
    assert slow != text
    fusion.write_text(slow, encoding="utf-8")
    now, other = instructions.count(ROOT, tiny_path, inputs), instructions.count(tree, tiny_path, inputs)
    assert list(now) == list(other) == STAGES
    assert instructions.report(other, now) == ["fuse"]
    assert instructions.report(now, now) == []
    assert "fuse" in capsys.readouterr().out
    for stage in set(STAGES) - {"fuse"}:
        assert now[stage] > 1000, stage
        assert other[stage] == pytest.approx(now[stage], rel=0.05, abs=instructions.LEAST), stage


@pytest.mark.slow
def test_one_command_counts_and_records(tiny_path: Path, queries: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = queries / "speed.json"
    assert instructions.main([str(tiny_path), "--queries", str(queries), "--count", "1", "--results", str(file)]) == 0
    assert "serialise" in capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert sorted(row["setting"] for row in rows) == sorted(STAGES)
    for row in rows:
        assert (row["key"], row["unit"], row["queries"], row["documents"]) == ("instructions", "instructions", 1, 120)
        assert row["value"] > 0


def test_what_can_not_be_counted_is_named(
    tmp_path: Path, tiny_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert instructions.main([str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
    old = tmp_path / "tree" / "loadtest"
    old.mkdir(parents=True)
    (old / "__init__.py").touch()
    (old / "instruction_worker.py").write_text("raise SystemExit('made for another bundle')\n", encoding="utf-8")
    with pytest.raises(LoadError, match=r"could not be counted[\s\S]*made for another bundle"):
        instructions.count(old.parent, tiny_path, inputs)
    shutil.rmtree(old)
    shutil.copytree(ROOT / "loadtest", old, ignore=shutil.ignore_patterns("__pycache__"))
    calls = old / "stage_calls.py"
    calls.write_text(calls.read_text(encoding="utf-8") + "\n\ndef _fuse(found):\n    raise OSError('gone')\n", "utf-8")
    for package in ("artifacts", "service"):
        shutil.copytree(ROOT / package, old.parent / package, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.raises(LoadError, match=r"could not be counted[\s\S]*gone[\s\S]*fuse: its process ended with 1"):
        instructions.count(old.parent, tiny_path, inputs)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoadError, match="valgrind is not installed") as caught:
        instructions.count(ROOT, tiny_path, inputs)
    assert caught.value.remedy == "Install the package valgrind."
