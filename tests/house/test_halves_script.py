"""recipes/halves.py on a tiny collection with a tiny bi-encoder."""

import json
from pathlib import Path

import pytest
import yaml
from lightretriever.artifacts.evaluation.runs import JudgedQueries
from lightretriever.service.cli import app
from typer.testing import CliRunner

from recipes import halves
from tests.support.biencoder import save_biencoder
from tests.support.models import write_corpus
from tests.support.tiny import tiny_documents

COUNT = 120


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, Path]:
    """A recipe whose bundle is built, and the collection."""
    collection = tmp_path / "set"
    (collection / "qrels").mkdir(parents=True)
    corpus = write_corpus(collection / "corpus.jsonl", COUNT)
    documents = tiny_documents(COUNT)
    queries = [json.dumps({"_id": f"q{i}", "text": one.full_text[:60]}) for i, one in enumerate(documents)]
    (collection / "queries.jsonl").write_text("\n".join(queries) + "\n")
    judged = [f"q{i}\t{one.id}\t1" for i, one in enumerate(documents)]
    (collection / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    content = {
        "name": "tiny",
        "model": {"path": str(save_biencoder(tmp_path / "tiny-bi")), "device": "cpu"},
        "corpus": {"path": str(corpus), "name": "tiny"},
        "tasks": {"search": ""},
        "default_task": "search",
        "index": {"factory": "Flat", "words": True},
        "distil": {"epochs": 1, "batch_size": 16, "held_out": 10},
        "work": str(tmp_path / "work"),
        "output": str(tmp_path / "bundle"),
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    return recipe, collection


def test_each_half_is_searched_by_tables_of_the_other_of_itself_and_of_both(
    built: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, collection = built
    result = CliRunner().invoke(app, ["build", str(recipe)])
    assert result.exit_code == 0, result.output
    assert halves.main([str(tmp_path / "halves.json"), f"{recipe}={collection}"]) == 0
    found = json.loads((tmp_path / "halves.json").read_text())["tiny"]
    assert json.dumps(found) in capsys.readouterr().out
    assert (found["documents"], found["queries"]) == (COUNT, COUNT)  # each query has its document in one half
    values = found["ndcg@10"]
    tables = [f"{table} {leg}" for table in ("other", "own", "whole", "encoder") for leg in ("dense", "hybrid")]
    assert set(values) == {"bm25", *tables}
    assert all(0 < value <= 1 for value in values.values())
    assert values["bm25"] > 0.5
    assert values["other dense"] != values["own dense"] != values["whole dense"]
    lost = found["other-own dense"]
    assert lost["mean"] == pytest.approx(values["other dense"] - values["own dense"], abs=2e-5)
    assert lost["low"] <= lost["mean"] <= lost["high"]


def test_judgments_of_the_other_half_are_left_out() -> None:
    qrels = {"q1": {"a": 1, "b": 2}, "q2": {"b": 1}, "q3": {"a": 0, "c": 1}}
    judged, places = halves.judged_among(JudgedQueries({name: name for name in qrels}, qrels, []), {"a", "c"})
    assert judged.qrels == {"q1": {"a": 1}, "q3": {"a": 0, "c": 1}}
    assert places.tolist() == [0, 2]


def test_a_recipe_without_words_is_refused(built: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    recipe, collection = built
    content = yaml.safe_load(recipe.read_text())
    del content["index"]["words"]
    recipe.write_text(yaml.safe_dump(content))
    assert halves.main([str(recipe.with_name("none.json")), f"{recipe}={collection}"]) == 2
    assert "needs the section distil, and index.words: true" in capsys.readouterr().err
