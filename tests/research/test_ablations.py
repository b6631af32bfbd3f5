"""ablations.py: what a variant changes, and two of them trained, evaluated and recorded on a toy set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.training.recipe import TrainRecipe
from research.quality import ablations, evaluate
from research.quality.recorded import read_rows
from tests.support.recipes import save, training
from tests.support.toy import save_toy_model, write_toy_set

STAGE = {"kind": "contrastive", "steps": 2, "batch_size": 8, "negatives": 0, "full_kl": 0.5, "matryoshka": [16]}
RECIPE = training(Path(), Path("left-to-the-command"), Path("pairs"), idf_rows=True, stages=[STAGE])
WHOLE = RECIPE | {
    "data": {**RECIPE["data"], "negatives": {"top": 10}},
    "stages": [
        {"kind": "query_likelihood", "steps": 2},
        {**STAGE, "contrastive": 0.0, "distillation": {"teachers": [{"scores": "scores.tsv"}]}},
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
    content = ablations.variant_of(WHOLE, name)
    assert content is not None
    changed = TrainRecipe.model_validate(content)
    assert CHANGES[name](changed)
    assert not CHANGES[name](whole)
    others = [holds(changed) for other, holds in CHANGES.items() if other != name]
    assert not any(others)


def test_what_is_not_in_a_recipe_is_no_variant_of_it() -> None:
    absent = {name for name in ablations.VARIANTS if ablations.variant_of(RECIPE, name) is None}
    assert absent == {"no-distillation", "no-filter", "no-likelihood"}


def test_the_table_has_means_over_collections(tmp_path: Path) -> None:
    for name, collection, metrics, postings in (
        ("base", "a", {"dense": 0.5}, {}),
        ("base", "b", {"dense": 0.25}, {}),
        ("no-kl", "a", {"sparse": 0.125}, {"sparse": 1234.4}),
    ):
        file = tmp_path / name / "quality" / collection / "evaluation" / "evaluation.json"
        file.parent.mkdir(parents=True)
        report = {
            "metrics": {leg: {"nDCG@10": value} for leg, value in metrics.items()},
            "postings_per_query": postings,
        }
        file.write_text(json.dumps(report))
    columns = [list(column.cells) for column in ablations.table(tmp_path).columns]
    assert columns == [["base", "no-kl"], ["0.3750", ""], ["", "0.1250"], ["", ""], ["", "1,234"]]


@pytest.mark.slow
def test_a_variant_is_trained_evaluated_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_toy_model(tmp_path / "model")
    write_toy_set(tmp_path / "data" / "pairs", "train", 60, seed=1)
    write_toy_set(tmp_path / "data" / "toy", "test", 20, seed=2)
    monkeypatch.setattr(evaluate, "COLLECTIONS", (evaluate.Collection("toy", "find"),))
    save(tmp_path / "bundle.yaml", {"kind": "language-model", "model": {"device": "cpu"}, "index": {"factory": "Flat"}})
    places = {"--data": "data", "--work": "work", "--results": "quality.json", "--bundle-recipe": "bundle.yaml"}
    command = [str(save(tmp_path / "train.yaml", RECIPE)), "--model", str(model), "--system", "toy"]
    command += [word for option, place in places.items() for word in (option, str(tmp_path / place))]
    command += ["--only", "base", "no-idf-rows", "--max-length", "16"]
    command += ["--", "--only", "dense"]
    assert ablations.main(command) == 0
    rows = read_rows(tmp_path / "quality.json")
    assert [row["system"] for row in rows] == ["toy dense", "toy-no-idf-rows dense"]
    tables = [tmp_path / "work" / name / "quality/toy/bundle/tables/search.npy" for name in ("base", "no-idf-rows")]
    assert tables[0].read_bytes() != tables[1].read_bytes()
    log = tmp_path / "work" / "base" / "train" / "log.jsonl"
    before = log.stat().st_mtime_ns
    assert ablations.main(command) == 0  # nothing is done twice
    assert log.stat().st_mtime_ns == before
    assert len(read_rows(tmp_path / "quality.json")) == 2


@pytest.mark.slow
def test_a_failed_training_ends_it(tmp_path: Path) -> None:
    places = {"--data": "data", "--work": "work", "--results": "quality.json"}
    command = [str(save(tmp_path / "train.yaml", RECIPE)), "--model", str(tmp_path / "none"), "--system", "toy"]
    command += ["--only", "base"]
    command += [word for option, place in places.items() for word in (option, str(tmp_path / place))]
    assert ablations.main(command) == 2
    assert not (tmp_path / "quality.json").exists()
