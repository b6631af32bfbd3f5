"""Recipes: what they take from the papers; and the adapter in the repository, complete, small and sound."""

import json
from pathlib import Path

import yaml
from peft import LoraConfig
from safetensors.torch import load_file

from lightretriever.artifacts.pipeline.recipe import read_recipe
from lightretriever.artifacts.training.recipe import ContrastiveStage, TrainRecipe

RECIPES = Path(__file__).parents[2] / "recipes"
WRITTEN = yaml.safe_load((RECIPES / "papers" / "instructions.yaml").read_text(encoding="utf-8"))
QWEN = RECIPES / "train-qwen2.5-1.5b.yaml"


def test_the_large_recipe_has_the_paper_s_sets_instructions_and_figures() -> None:
    counts = [sum(map(len, WRITTEN["training"].values())), len(WRITTEN["beir"]), len(WRITTEN["cmteb"])]
    assert counts == [23, 15, 8]
    recipe = read_recipe(QWEN, TrainRecipe)
    assert len(recipe.data.sets) == 23
    assert abs(sum(one.weight or 0 for one in recipe.data.sets) - 100) < 0.5
    own = {one.instructions for one in recipe.data.sets}
    assert all(tuple(several) in own for several in WRITTEN["training"].values())
    [stage] = recipe.stages
    assert isinstance(stage, ContrastiveStage)
    assert round(stage.warmup * stage.steps) == 100
    assert (stage.batch_size, stage.negatives, stage.flops.warmup) == (128, 7, stage.steps // 3)


ADAPTER = RECIPES / "adapters" / "smollm2-135m"
LAYERS, HIDDEN, DIMENSION = 12, 576, 384  # those that are read, of SmolLM2-135M; of the bi-encoder that it follows


def test_the_adapter_is_small_and_peft_reads_it() -> None:
    assert sum(file.stat().st_size for file in ADAPTER.iterdir()) < 20e6
    config = LoraConfig.from_pretrained(str(ADAPTER))
    assert config.base_model_name_or_path == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert config.target_modules is not None
    tensors = load_file(ADAPTER / "adapter_model.safetensors")
    assert len(tensors) == 2 * LAYERS * len(config.target_modules)
    projection = load_file(ADAPTER / "projection.safetensors")
    assert [tuple(tensor.shape) for tensor in projection.values()] == [(DIMENSION, HIDDEN)]
    for name, tensor in (tensors | projection).items():
        assert tensor.isfinite().all(), name
        assert tensor.any(), f"{name} was never trained"
    settings = json.loads((ADAPTER / "lightretriever.json").read_text())
    assert (settings["layers"], settings["projection"]) == (LAYERS, True)
