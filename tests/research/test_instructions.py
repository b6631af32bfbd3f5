"""Instructions by stage, counted by valgrind where it is installed."""

import json
import shutil
from pathlib import Path

import pytest
from lightretriever.artifacts.bundle.reader import Bundle

from research.instructions import __main__ as instructions
from research.instructions.stages import NOTHING, stages_of

QUERIES = ["music player", "a small library for numbers", "terminal"]


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(QUERIES)]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_every_stage_but_those_of_lucene_runs(tiny_bundle: Bundle) -> None:
    stages = stages_of(tiny_bundle, QUERIES)
    assert list(stages) == [NOTHING, "tokenize", "encode", "dense", "fuse"]
    ordinals, scores = stages["dense"](0)
    assert len(ordinals) == len(scores) == min(100, tiny_bundle.manifest.documents)
    assert len(stages["encode"](1).terms) > 1
    assert len(stages["fuse"](0).scores) > len(stages["encode"](1).terms)


def test_words_are_lucenes(word_bundle: Bundle) -> None:
    stages = stages_of(word_bundle, QUERIES)
    assert list(stages) == [NOTHING, "tokenize", "encode", "dense", "fuse"]
    query = stages["encode"](1)
    assert query.terms == []
    assert query.tokens.ids.size > 1


def test_without_valgrind_an_error_says_what_to_install(
    tiny_path: Path, queries: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(queries))
    assert instructions.main([str(tiny_path), "--queries", str(queries)]) == 2
    assert "apt-get install valgrind" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_stages_are_counted(tiny_path: Path, queries: Path) -> None:
    counts = instructions.counts_of(tiny_path, queries, len(QUERIES))
    assert 0 < counts["tokenize"] < counts["encode"]
    assert counts["dense"] > 0
