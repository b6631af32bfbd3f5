"""research/quality: one command builds, evaluates and records; ablations; the file of results, and tables of pages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.language_model import instruction_prefix
from lightretriever.artifacts.training.dev import DevSet, measured
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.losses import cosine_scores
from lightretriever.artifacts.training.objectives import QuerySide
from lightretriever.artifacts.training.recipe import ContrastiveStage, DevRecipe, TrainRecipe
from lightretriever.loadtest.program import typed_command
from research.pages import objectives, results
from research.quality import ablations, evaluate
from research.quality.recorded import queries_file, read_queries_file, read_rows, record, result_rows
from research.record import ROOT
from tests.artifacts.test_evaluate import QRELS, SYSTEMS, write_dataset
from tests.support.judged import evaluate_bundle, write_judged
from tests.support.models import load, save_model, token_states_naive, write_corpus
from tests.support.recipes import save, training
from tests.support.toy import save_toy_model, write_toy_set
from tests.support.wordings import raises

WITHOUT_MODEL = {
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
    recipe.write_text(yaml.safe_dump(WITHOUT_MODEL))
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


STAGE = {"kind": "contrastive", "steps": 2, "batch_size": 8, "negatives": 0, "full_kl": 0.5, "matryoshka": [16]}
RECIPE = training(Path(), Path("left-to-the-command"), Path("pairs"), idf_rows=True, stages=[STAGE])
WHOLE = RECIPE | {
    "data": {**RECIPE["data"], "negatives": {"top": 10}},
    "stages": [
        {"kind": "query_likelihood", "steps": 2},
        {**STAGE, "negatives": 2, "contrastive": 0.0, "distillation": {"teachers": [{"scores": "scores.tsv"}]}},
    ],
}
CHANGES: dict[str, Callable[[Any], bool]] = {
    "no-kl": lambda recipe: recipe.stages[-1].full_kl == 0,
    "no-idf": lambda recipe: not recipe.stages[-1].flops.idf,
    "no-idf-rows": lambda recipe: not recipe.idf_rows,
    "no-matryoshka": lambda recipe: recipe.stages[-1].matryoshka == [],
    "no-distillation": lambda recipe: recipe.stages[-1].distillation is None and recipe.stages[-1].contrastive == 1,
    "no-filter": lambda recipe: recipe.data.negatives.top is None,
    "no-likelihood": lambda recipe: len(recipe.stages) == 1,
    "flops-tenth": lambda recipe: recipe.stages[-1].flops.weight == pytest.approx(1e-4),
    "flops-tenfold": lambda recipe: recipe.stages[-1].flops.weight == pytest.approx(1e-2),
}


@pytest.mark.parametrize("name", ablations.VARIANTS)
def test_a_variant_changes_one_thing(name: str) -> None:
    whole = TrainRecipe.model_validate(WHOLE)
    changed = ablations.variant_of(whole, name)
    assert CHANGES[name](changed)
    assert not CHANGES[name](whole)
    others = [holds(changed) for other, holds in CHANGES.items() if other != name]
    assert not any(others)


def test_what_is_not_in_a_recipe_is_no_variant_of_it() -> None:
    recipe = TrainRecipe.model_validate(RECIPE)
    absent = {name for name in ablations.VARIANTS if ablations.variant_of(recipe, name) == recipe}
    assert absent == {"no-distillation", "no-filter", "no-likelihood"}


@pytest.mark.slow
def test_variants_are_trained_and_evaluated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_toy_model(tmp_path / "model")
    write_toy_set(tmp_path / "data" / "pairs", "train", 60, seed=1)
    write_toy_set(tmp_path / "data" / "toy", "test", 20, seed=2)
    monkeypatch.setattr(ablations, "COLLECTIONS", (evaluate.Collection("toy", "find"),))
    names = ("base", "no-matryoshka", *ablations.READERS)
    recipe = save(tmp_path / "train.yaml", RECIPE | {"stages": [{**STAGE, "learning_rate": 0.01}]})
    command = [str(recipe), "--model", str(model), "--data", str(tmp_path / "data"), "--work", str(tmp_path / "work")]
    command += ["--device", "cpu", "--only", *names]
    assert ablations.main(command) == 0
    logs = {name: tmp_path / "work" / name / "train" / "log.jsonl" for name in names}
    losses = {name: [json.loads(line)["dense"] for line in log.read_text().splitlines()] for name, log in logs.items()}
    assert len({one[0] for one in losses.values()}) == len(names)  # each trains something else
    scores = {file.parent.name: json.loads(file.read_text()) for file in tmp_path.glob("work/*/scores.json")}
    assert scores.keys() == {*names, "light-documents"}
    assert scores["light-documents"]["scores"]["toy"].keys() == {"dense"}
    assert scores["base"]["scores"]["toy"].keys() == {"dense", "sparse", "hybrid"}
    assert "query-mlp" in capsys.readouterr().out
    before = {log: log.read_bytes() for log in logs.values()}
    (tmp_path / "work" / "query-mlp" / "scores.json").unlink()
    assert ablations.main(command) == 0  # evaluates what is trained already
    assert {log: log.read_bytes() for log in logs.values()} == before
    again = json.loads((tmp_path / "work" / "query-mlp" / "scores.json").read_text())
    assert again == scores["query-mlp"]


def test_the_first_layer_alone_reads_whole_queries(tmp_path: Path) -> None:
    """A3, against the model with one layer; an adapter that isn't trained yet changes nothing."""
    model, queries = save_toy_model(tmp_path / "model"), [[14, 16, 14], [20]]
    write_toy_set(tmp_path / "pairs", "train", 30, seed=1)
    content = RECIPE | {"work": str(tmp_path / "work"), "output": str(tmp_path / "adapter")}
    recipe = TrainRecipe.model_validate(content | {"model": {"path": str(model), "device": "cpu"}}, context=tmp_path)
    run = ablations.VariantRun(recipe, Engine.of(recipe), "query-first-layer")
    stage = ContrastiveStage.model_validate(STAGE)
    reader, alone = run.query_side(stage).read, load(model, layers=1)
    prefix = [1, 5, 6]
    with torch.inference_mode():
        found = reader(run.adapter.backbone, prefix, [torch.tensor(query) for query in queries], None)
        for row, query in zip(found, queries, strict=True):
            states = alone.decoder(input_ids=torch.tensor([[*prefix, *query, alone.eos_id]]))[0]
            torch.testing.assert_close(row, states[0, -1], atol=1e-5, rtol=1e-4)


def test_light_documents_are_means_of_table_rows(tmp_path: Path) -> None:
    """A1, against each token read by itself."""
    backbone = load(save_toy_model(tmp_path / "model"))
    write_toy_set(tmp_path / "toy", "dev", 20, seed=2)
    dev = DevSet.load(DevRecipe(path=tmp_path / "toy", instruction="find"), seed=0)
    prefix, tokenizer = instruction_prefix(backbone, "find"), backbone.tokenizer
    with torch.inference_mode():
        found = ablations.evaluate_light_documents(backbone, dev, 6, QuerySide())
        with torch.autocast("cpu", torch.bfloat16):
            rounded = ablations.evaluate_light_documents(backbone, dev, 6, QuerySide())
        texts = [document.full_text for document in dev.documents]
        queries, documents = (
            torch.stack([token_states_naive(backbone, prefix, torch.tensor(ids[:6]).long()).mean(0) for ids in read])
            for read in (tokenizer.as_queries(dev.queries.values()), tokenizer.encode_batch(texts))
        )
    assert found == measured(dev, {"dense": cosine_scores(queries, documents).numpy()})
    assert rounded == pytest.approx(found, abs=0.05)


@pytest.fixture(scope="module")
def evaluated(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("quality")
    return evaluate_bundle(tiny_bundle.path, write_dataset(folder / "toy", QRELS), folder / "out")


def test_rows_of_an_evaluation(evaluated: dict[str, Any], tiny_bundle: Bundle) -> None:
    rows = result_rows(evaluated, "tiny", "lightretriever evaluate …", "a remark")
    assert [row["system"] for row in rows] == [*(f"tiny {name}" for name in SYSTEMS[:-1]), "bm25"]
    for row, system in zip(rows, SYSTEMS, strict=True):
        assert row["ndcg@10"] == pytest.approx(evaluated["metrics"][system]["nDCG@10"], abs=1e-5)
        assert row["recall@100"] == pytest.approx(evaluated["metrics"][system]["R@100"], abs=1e-5)
        assert (row["dataset"], row["queries"], row["documents"], row["split"]) == ("toy", 5, 120, "test")
        assert (row["command"], row["note"]) == ("lightretriever evaluate …", "a remark")
        assert row["machine"].endswith(" cores")
        assert row["date"] == evaluated["environment"]["date"]
    dense, _, hybrid, bm25 = rows
    assert dense["bundle"] == hybrid["bundle"] == tiny_bundle.manifest.digest
    assert (dense["dimension"], dense["sparse"]["vocabulary"]) == (16, "tokens")
    assert bm25["bm25"] == {"k1": 0.9, "b": 0.4}
    assert not {"bundle", "model", "settings", "dimension"} & set(bm25)


def test_what_lowers_a_result_stands_in_its_row(evaluated: dict[str, Any]) -> None:
    dataset = evaluated["dataset"] | {"relevant_documents_missing_in_bundle": 3, "split": "dev"}
    report = evaluated | {"dataset": dataset, "queries_without_answer": {"dense": ["q1", "q2"]}}
    dense, sparse, *_ = result_rows(report, "tiny", "…")
    assert (dense["relevant_documents_missing"], sparse["relevant_documents_missing"]) == (3, 3)
    assert dense["dataset"] == "toy/dev"  # another split is another set
    assert dense["queries_without_answer"] == 2
    assert "queries_without_answer" not in sparse


def row(system: str, dataset: str, value: float) -> dict[str, Any]:
    return {"system": system, "dataset": dataset, "ndcg@10": value}


def test_recorded_rows_replace_their_like_and_are_sorted(tmp_path: Path) -> None:
    file = tmp_path / "results" / "quality.json"
    record(file, [row("b dense", "toy", 0.1), row("bm25", "toy", 0.2)], {"b dense": {"q2": 0.2, "q1": 0.0}})
    record(file, [row("a dense", "zoo", 0.3)], {"a dense": {"q7": 0.30001}})
    record(file, [row("b dense", "toy", 0.4), row("a dense", "toy", 0.5)], {"b dense": {"q1": 0.25, "q2": 0.55}})
    assert read_rows(file) == [
        row("a dense", "toy", 0.5),
        row("b dense", "toy", 0.4),
        row("bm25", "toy", 0.2),
        row("a dense", "zoo", 0.3),
    ]
    assert set(json.loads(file.read_text())) == {"rows"}
    assert read_queries_file(file) == {
        "toy": {"queries": ["q1", "q2"], "ndcg@10": {"b dense": [0.25, 0.55]}},
        "zoo": {"queries": ["q7"], "ndcg@10": {"a dense": [0.30001]}},
    }
    assert sorted(path.name for path in file.parent.iterdir()) == ["quality.json", "quality.queries.json.gz"]


def test_other_queries_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    record(file, [row("a", "toy", 0.5)], {"a": {"q1": 0.5}})
    before = file.read_bytes(), queries_file(file).read_bytes()
    with raises(RecipeError, naming="queries.json.gz"):
        record(file, [row("b", "toy", 0.5)], {"b": {"q1": 0.5, "q2": 0.5}})
    assert (file.read_bytes(), queries_file(file).read_bytes()) == before


def test_no_folder_gets_into_the_recorded_command() -> None:
    typed = ["lightretriever", "evaluate", "/home/me/runs/bundle/", "../data/scifact", "--output=/tmp/x y/out"]
    typed += ["--weights", "0.7", "0.3", "--query-model", "models/mpnet", "--note", "two words"]
    assert typed_command(typed) == (
        "lightretriever evaluate bundle scifact --output=out --weights 0.7 0.3 --query-model mpnet --note 'two words'"
    )


def test_the_documentation_is_up_to_date() -> None:
    for page, text in results.outputs(ROOT).items():
        assert page.read_text("utf-8") == text, (
            f"{page} differs from docs/results/: run python -m research.pages.results"
        )


def test_the_paired_test_is_that_of_the_book() -> None:
    # Student's sleep data (1908): t = -4.0621 with 9 degrees of freedom, p = 0.002833.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    difference, p = results.paired_test(first, second)
    assert difference == pytest.approx(-1.58)
    assert p == pytest.approx(0.002833, abs=1e-6)
    assert results.paired_test([1.0, 2.0], [0.5, 1.5]) == (0.5, 0.0)


def test_objectives_keep_the_rows_of_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "reliability.json"
    objectives.record(file, [{"key": "soak_failures", "value": 3, "unit": "answers"}], "make faults")
    objectives.record(file, [{"key": "overload_failures", "value": 1, "unit": "requests"}], "make faults")
    objectives.record(file, [{"key": "soak_failures", "value": 0, "unit": "answers"}], "make faults")
    content = json.loads(file.read_text())
    assert [(row["key"], row["value"]) for row in content["rows"]] == [("soak_failures", 0), ("overload_failures", 1)]
    assert content["rows"][0]["goal"] == objectives.OBJECTIVES["soak_failures"][1]
    lines = objectives.objectives_table(content)
    assert lines[0].startswith("1 of 2 bounds are kept")
    assert [line for line in lines if "five times the capacity" in line] == [
        f"| {objectives.OBJECTIVES['overload_failures'][0]} | 1 | requests | 0 |"
    ]
    assert not any(objectives.OBJECTIVES["soak_failures"][0] in line for line in lines)
