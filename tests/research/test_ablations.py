"""ablations.py: what a variant changes, and some of them trained and evaluated on a toy set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightretriever.artifacts.pipeline.language_model import instruction_prefix
from lightretriever.artifacts.training.dev import DevSet, measured
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.losses import cosine_scores
from lightretriever.artifacts.training.objectives import QuerySide
from lightretriever.artifacts.training.recipe import ContrastiveStage, DevRecipe, TrainRecipe
from research.quality import ablations, evaluate
from tests.support.models import load, token_states_naive
from tests.support.recipes import save, training
from tests.support.toy import save_toy_model, write_toy_set

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
