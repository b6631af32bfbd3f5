"""evaluate.py on a tiny collection with a tiny model: builds, evaluates, records, and does nothing twice."""

import json
from pathlib import Path

import pytest
import yaml

from research.quality import evaluate
from research.quality.recorded import read_queries_file, read_rows
from tests.support.judged import write_judged
from tests.support.models import save_model, write_corpus

RECIPE = {
    "kind": "language-model",
    "model": {"bos_token": "<|im_start|>", "device": "cpu"},
    "encode": {"top_k": 50, "max_length": 40},
}


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A recipe without a model, and a folder of data with one collection, one of whose documents is empty."""
    collection = tmp_path / "data" / "eval" / "toy"
    write_judged(collection, {"q1": "playlists and a small library"}, {"q1": {"music": 1}})
    write_corpus(collection / "corpus.jsonl", 20)
    with (collection / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "empty", "text": ""}\n')
    instruction = "Given a text, retrieve its like"
    monkeypatch.setattr(evaluate, "COLLECTIONS", (evaluate.Collection("eval/toy", instruction, skip_bad=True),))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    model = save_model(tmp_path / "model", "llama")
    options = {"--data": tmp_path / "data", "--work": tmp_path / "work", "--results": tmp_path / "quality.json"}
    return [str(recipe), "--model", str(model), *(str(word) for pair in options.items() for word in pair)]


def test_one_command_builds_evaluates_and_records(arguments: list[str], tmp_path: Path) -> None:
    command = [*arguments, "--system", "tiny", "--full", "--", "--only", "full-dense", "--only", "bm25"]
    assert evaluate.main(command) == 0
    recipe = yaml.safe_load((tmp_path / "work" / "toy" / "recipe.yaml").read_text())
    assert recipe["encode"] == {"top_k": 50, "max_length": 40}
    assert recipe["tasks"] == {"search": "Given a text, retrieve its like"}
    rows = read_rows(tmp_path / "quality.json")
    assert [row["system"] for row in rows] == ["bm25", "tiny full-dense"]
    assert {(row["dataset"], row["documents"]) for row in rows} == {("toy", 20)}
    assert rows[1]["settings"]["query_model"] == {"name": "model", "adapter": None, "bos_token": "<|im_start|>"}
    assert rows[0]["note"] == "documents cut to 40 tokens"
    assert str(tmp_path) not in json.dumps(rows)
    values = read_queries_file(tmp_path / "quality.json")["toy"]
    assert {row["system"]: [row["ndcg@10"]] for row in rows} == values["ndcg@10"]  # of one query
    report = json.loads((tmp_path / "work" / "toy" / "tiny-evaluation" / "evaluation.json").read_text())
    assert report["warnings"] == []

    made = [tmp_path / name for name in ("quality.json", "work/toy/recipe/manifest.json")]
    before = [file.stat().st_mtime_ns for file in made]
    assert evaluate.main(command) == 0
    assert [file.stat().st_mtime_ns for file in made] == before


def test_a_bundle_of_other_settings_is_not_taken(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "work" / "toy" / "recipe.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("name: another\n")
    assert evaluate.main([*arguments, "--system", "tiny"]) == 2
    assert "was written with other settings" in capsys.readouterr().err
    assert recipe.read_text() == "name: another\n"
    assert not (tmp_path / "quality.json").exists()


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines(keepends=True)


def test_a_collection_made_for_training_is_cut_to_what_its_test_split_judges(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = tmp_path / "data" / "eval" / "toy"
    corpus, queries = collection / "corpus.jsonl", collection / "queries.jsonl"
    corpus.write_text("".join(line for line in lines_of(corpus) if '"empty"' not in line))
    with queries.open("a") as file:
        file.write('{"_id": "trained", "text": "of another split"}\n')
    with (collection / "qrels" / "test.tsv").open("a") as file:
        file.write("q1\tdoc-15\t1\n")
    monkeypatch.setattr(evaluate, "COLLECTIONS", (evaluate.Collection("eval/toy", "Given a text", part=True),))
    assert evaluate.main([*arguments, "--system", "tiny", "--", "--only", "bm25"]) == 0
    part = tmp_path / "work" / "toy-test" / "toy-test"
    judged = [line for line in lines_of(corpus) if json.loads(line)["_id"] in {"music", "doc-15"}]
    assert (part / "corpus.jsonl").read_text() == "".join(judged)
    assert len(judged) == 2
    assert [json.loads(line)["_id"] for line in lines_of(part / "queries.jsonl")] == ["q1"]
    assert (part / "qrels" / "test.tsv").read_bytes() == (collection / "qrels" / "test.tsv").read_bytes()
    rows = read_rows(tmp_path / "quality.json")
    assert [(row["dataset"], row["documents"], row["queries"]) for row in rows] == [("toy-test", 2, 1)]
