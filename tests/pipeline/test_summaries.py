"""What the long commands say while they work and at their end: for people, and as JSON, as docs/commands.md has it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.reports import ProgressBar, duration, tracked
from lightretriever.artifacts.signals import Stopped
from lightretriever.service.cli import COMMANDS
from tests.support.commands import ROOT, documented, invoke, only, summary_of
from tests.support.judged import write_judged
from tests.support.recipes import change, save, training, write_recipe
from tests.support.toy import save_toy_model, write_toy_set


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A folder with a recipe of every stage, a test collection and a recipe of a training."""
    folder = tmp_path_factory.mktemp("summaries")
    sections: dict[str, Any] = {"kind": "language-model", "distil": {"batch_size": 8, "epochs": 2, "sentences": False}}
    sections["encode"] = {"max_length": 32, "top_k": 20, "shard_size": 16}
    recipe = write_recipe(folder, model_folder, documents=40, tasks={"web": "Find it", "fact": ""}, **sections)
    change(recipe, {"corpus.skip_bad": True})
    with (folder / "corpus.jsonl").open("a") as corpus:
        corpus.write("nonsense\n")
    return write_judged(folder, {"q1": "playlists and a small library"}, {"q1": {"music": 1}})


def test_every_stage_says_what_it_made(place: Path) -> None:
    recipe, work = place / "recipe.yaml", place / "work"
    encode = summary_of(*only("encode"), recipe, "--limit", 30)
    assert (encode["documents"], encode["shards"], encode["skipped"]) == (30, 2, 0)
    assert 0 < encode["terms"] <= 30 * 20
    assert encode["bytes"] == sum(file.stat().st_size for file in (work / "encode").rglob("*") if file.is_file())
    assert (encode["reused"], encode["encoded"], encode["removed"]) == (0, 30, 0)
    table = summary_of(*only("table"), recipe, "--limit", 30)
    assert {task: made["path"] for task, made in table["tables"].items()} == {
        task: str(work / "tables" / task / "table.npy") for task in ("web", "fact")
    }
    assert table["tables"]["web"]["dimension"] == 32
    assert table["tables"]["web"]["agreement"]["epochs"] == 2
    index = summary_of(*only("index"), recipe, "--limit", 30)
    bundle = Bundle.open(place / "bundle")
    assert index["version"] == bundle.manifest.digest
    assert index["cut"] == encode["cut"] == bundle.manifest.corpus.cut
    assert (index["documents"], index["tasks"]) == (30, ["fact", "web"])
    verify = summary_of("verify", bundle.path)
    assert (verify["sound"], verify["problems"], verify["bytes"]) == (True, [], index["bytes"])
    evaluate = summary_of("evaluate", bundle.path, place, "--output", place / "evaluation", "--only", "bm25")
    report = json.loads(Path(evaluate["report"]).read_text())
    assert evaluate["metrics"] == report["metrics"]
    assert (evaluate["queries"], evaluate["files"]) == (1, 2)


def test_build_counts_skipped_lines_and_verify_lists_problems(place: Path, tmp_path: Path) -> None:
    places = ["--work", tmp_path / "work", "--output", tmp_path / "bundle"]
    build = summary_of("build", place / "recipe.yaml", *places)
    assert (build["documents"], build["skipped"]) == (40, 1)
    corpus = Bundle.open(tmp_path / "bundle").manifest.corpus
    assert (corpus.skipped, corpus.cut) == (1, build["cut"])
    assert build["cut"] > 0
    (tmp_path / "bundle" / "dense.faiss").write_bytes(b"")
    command = ["verify", tmp_path / "bundle", "--json"]
    verify = invoke(*command)
    found = documented(json.loads(verify.stdout), command)
    assert (verify.exit_code, found["sound"], found["documents"]) == (1, False, 40)
    assert [problem["file"] for problem in found["problems"]] == ["dense.faiss"]
    (tmp_path / "bundle" / "manifest.json").unlink()
    assert json.loads(invoke(*command).stdout)["documents"] is None


def test_training_says_how_far_it_is(place: Path, tmp_path: Path) -> None:
    save_toy_model(tmp_path / "model")
    write_toy_set(tmp_path / "pairs", "train", 40, seed=1)
    stage = {"kind": "contrastive", "steps": 2, "batch_size": 8, "negatives": 0}
    recipe = training(tmp_path, tmp_path / "model", tmp_path / "pairs", stages=[stage])
    file = save(tmp_path / "train.yaml", recipe)
    begun = summary_of("train", file, "--minutes", 0)
    assert (begun["finished"], begun["steps_done"], begun["steps"]) == (False, 1, 2)
    assert begun["pairs"] == len(json.loads((tmp_path / "work" / "data" / "pairs" / "examples.json").read_text()))
    done = summary_of("train", file)
    assert (done["finished"], done["steps_done"], done["best"]) == (True, 2, None)
    assert done["files"] == len(list((tmp_path / "adapter").iterdir()))


def test_an_error_is_an_object_on_stdout_too(place: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1"}\n')
    arguments = ["build", place / "recipe.yaml", "--corpus", tmp_path, "--work", tmp_path / "work"]
    result = invoke(*arguments, "--json")
    assert isinstance(result.exception, LightRetrieverError)  # which `main` makes a line on stderr and status 2
    error, raised = json.loads(result.stdout)["error"], result.exception
    kind = type(raised).__name__
    assert error == {"kind": kind, "message": raised.message, "remedy": raised.remedy, "status": 2}
    plain = invoke(*arguments)
    assert plain.stdout == ""


@pytest.mark.parametrize(("error", "status"), [(Stopped(15), 143), (RuntimeError("odd"), 1)])
def test_a_stop_and_an_unexpected_error_are_objects_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("lightretriever.artifacts.cli.operate.verify_bundle", fail)
    result = invoke("verify", tmp_path, "--json")
    assert result.exit_code == status
    found = json.loads(result.stdout)["error"]
    assert (found["kind"], found["status"]) == (type(error).__name__, status)
    assert ("stopped by SIGTERM. The same command begins again; nothing of it is left." in result.stderr) == (
        status == 143
    )


def test_every_command_says_what_a_second_run_does() -> None:
    offline = {name for name, one in COMMANDS.items() if one.module.startswith("lightretriever.artifacts.cli")}
    page = ROOT / "docs" / "commands.md"
    section = page.read_text(encoding="utf-8").partition("\n## Stopped, and run again\n")[2].partition("\n## ")[0]
    heads = " ".join(re.findall(r"^- ([^:\n]*): ", section, flags=re.MULTILINE))
    assert set(re.findall(r"`([\w-]+)`", heads)) == offline


def test_a_log_has_a_line_every_while_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProgressBar("encode", total=1_200, unit="documents") as progress:
        progress.skip(200)
        progress.advance(512)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr("lightretriever.artifacts.reports.LOG_EVERY_S", 0.0)
        with ProgressBar("inner", total=None, unit="texts") as inner:
            inner.advance(2_000)
            assert capsys.readouterr().err == "inner: 2,000 texts, 0.0 s\n"
        assert capsys.readouterr().err.startswith("inner: ")
        progress.advance(100)
        line = capsys.readouterr().err
        assert line.startswith("encode: 612/1,000 documents, ")
        assert line.endswith(" left\n")
        progress.advance(388)
        capsys.readouterr()
    assert capsys.readouterr().err.startswith("encode: 1,000/1,000 documents, ")


def test_on_a_terminal_one_line_changes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("lightretriever.artifacts.reports._LIVE_EVERY_S", 0.0)
    assert list(tracked("ab", "encode", total=2, unit="documents")) == ["a", "b"]
    lines = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert [line.partition(" ")[2].partition(" ")[0] for line in lines] == ["1/2", "2/2", "2/2"]


def test_a_stage_that_fails_has_no_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="bad"), ProgressBar("encode", total=1, unit="documents"):
        raise ValueError("bad")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.84, "0.8 s"), (41.7, "42 s"), (725, "12 min 5 s"), (12_000, "3 h 20 min")]
)
def test_a_length_of_time_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
