"""Sparse weights on top of BM25: its scores, its step, and a whole run."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.workdir import check_plan, read_json
from lightretriever.artifacts.pipeline.biencoder import load_biencoder
from lightretriever.artifacts.training import loop
from lightretriever.artifacts.training.losses import bm25_scores
from lightretriever.artifacts.training.recipe import RegressionStage, TrainRecipe
from lightretriever.artifacts.training.residual import PairVectors
from lightretriever.artifacts.training.types import Batch, Example, TrainingSet
from safetensors.torch import load_file

from tests.support.biencoder import save_biencoder
from tests.support.toy import save_toy_model, write_toy_set

train = loop.train


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("residual")
    save_toy_model(folder / "model")
    save_biencoder(folder / "teacher", hidden_size=32)
    write_toy_set(folder / "pairs", "train", 200, seed=1)
    write_toy_set(folder / "dev", "dev", 40, seed=2)
    return folder


def recipe_of(toy: Path, work: Path) -> TrainRecipe:
    stage = {"kind": "residual", "steps": 4, "batch_size": 8, "negatives": 1, "learning_rate": 0.003}
    content: dict[str, Any] = {
        "name": "toy",
        "model": {"path": str(toy / "model"), "device": "cpu"},
        "teacher": {"path": str(toy / "teacher"), "length": 12, "long_length": 16},
        "lora": {"r": 8, "alpha": 16, "dropout": 0.0},
        "data": {
            "sets": [{"path": str(toy / "pairs"), "instruction": "find"}],
            "max_document_length": 16,
            "negatives": {"count": 1},
        },
        "stages": [stage],
        "dev": {"path": str(toy / "dev"), "instruction": "find", "every": 2, "queries": 20, "documents": 40},
        "checkpoint_every": 1,
        "work": str(work / "work"),
        "output": str(work / "adapter"),
    }
    return TrainRecipe.model_validate(content)


def log_of(work: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (work / "work" / "log.jsonl").read_text().splitlines()]


def test_bm25_by_its_formula() -> None:
    idf = torch.tensor([1.0, 2.0, 0.5, 9.0])
    scores = bm25_scores([torch.tensor([0, 1, 1]), torch.tensor([2, 3])], [[0, 1, 1, 2], [2]], idf, 2.0)
    norm = 0.9 * (1 - 0.4 + 0.4 * 4 / 2)
    first = 1 / (1 + norm) + 2 * 2.0 * 2 / (2 + norm)
    short = 0.9 * (1 - 0.4 + 0.4 * 1 / 2)
    assert scores.tolist() == [
        [pytest.approx(first), 0.0],
        [pytest.approx(0.5 / (1 + norm)), pytest.approx(0.5 / (1 + short))],
    ]


@pytest.mark.slow
def test_a_run_in_slices_ends_with_the_result_of_one_run(toy: Path, tmp_path: Path) -> None:
    assert train(recipe_of(toy, tmp_path / "whole"))
    while not train(recipe_of(toy, tmp_path / "slices"), minutes=0):
        pass
    whole, slices = (
        [entry["loss"] for entry in log_of(tmp_path / name) if "loss" in entry] for name in ("whole", "slices")
    )
    assert whole == slices
    for name, tensor in load_file(tmp_path / "whole" / "adapter" / "adapter_model.safetensors").items():
        other = load_file(tmp_path / "slices" / "adapter" / "adapter_model.safetensors")
        assert torch.equal(tensor, other[name]), name
    entries = log_of(tmp_path / "whole")
    assert [entry["step"] for entry in entries if "dev" in entry] == [0, 2, 4]
    assert all({"bm25", "sparse"} <= entry["dev"].keys() for entry in entries if "dev" in entry)
    steps = [entry for entry in entries if "loss" in entry]
    assert all(entry["ensemble_gradient"] > 0 and entry["flops_gradient"] > 0 for entry in steps)
    settings = json.loads((tmp_path / "whole" / "adapter" / "lightretriever.json").read_text())
    assert settings["bm25"] == {"factor": 2.0, "k1": 0.9, "b": 0.4}
    assert settings["sparse_positions"] == "inner"


def test_a_regression_stage_can_be_added_and_taken_back(toy: Path, tmp_path: Path) -> None:
    """It brings a linear map that the earlier checkpoint lacks, and no development score: its own weights are kept."""
    recipe = recipe_of(toy, tmp_path)
    assert train(recipe)
    stages = [*recipe.stages, RegressionStage(kind="regression", steps=1, batch_size=8, every=1)]
    longer = recipe.model_copy(update={"stages": stages})
    work = shutil.copytree(tmp_path / "work", tmp_path / "other")
    check_plan(work / "plan.json", read_json(work / "plan.json") | {"stages": stages_of(longer)}, growing="stages")
    assert train(recipe.model_copy(update={"work": work}))  # it had not begun
    assert train(longer)
    trained = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    last = torch.load(tmp_path / "work" / "checkpoint.pt", weights_only=True)["weights"]
    best = load_file(tmp_path / "work" / "best.safetensors")
    for name, tensor in last.items():
        if name != "projection":
            assert torch.equal(trained[name.replace(".default", "")], tensor.bfloat16()), name
    assert any(not torch.equal(tensor, last[name]) for name, tensor in best.items())
    assert (tmp_path / "adapter" / "projection.safetensors").is_file()
    assert "those of the last step" in (tmp_path / "adapter" / "README.md").read_text()
    plan = (tmp_path / "work" / "plan.json").read_bytes()
    with pytest.raises(ResumeError, match="stages: 1 now, but 2 have begun") as refused:
        train(recipe)
    assert refused.value.remedy == "Name them all; only a stage that has not begun can be taken back."
    assert (tmp_path / "work" / "plan.json").read_bytes() == plan


def stages_of(recipe: TrainRecipe) -> Any:
    return recipe.model_dump(mode="json", exclude={"stages": {"__all__": {"chunk_tokens", "steps", "every"}}})["stages"]


def test_cosines_are_the_teachers(toy: Path, tmp_path: Path) -> None:
    teacher = load_biencoder(str(toy / "teacher"), device="cpu")
    documents = {"a": "music player", "b": "text editor"}
    one = TrainingSet("set", "find", 1.0, [Example(0, "q", "plays music", "a", ("b",))], documents)
    vectors = PairVectors(teacher, [one], tmp_path)
    found = vectors.cosines(Batch(one, one.examples, [["a", "b"]]), ["b", "a"])
    query = teacher.encode_queries(["plays music"]).dense
    texts = teacher.encode_documents(["text editor", "music player"]).dense
    np.testing.assert_allclose(found.numpy(), query @ texts.T, atol=2e-3)
    other = TrainingSet("set", "find", 1.0, [Example(0, "q", "another", "a", ("b",))], documents)
    found = PairVectors(teacher, [other], tmp_path).cosines(Batch(other, other.examples, [["a"]]), ["b", "a"])
    np.testing.assert_allclose(found.numpy(), teacher.encode_queries(["another"]).dense @ texts.T, atol=2e-3)
