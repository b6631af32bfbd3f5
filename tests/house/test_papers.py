"""What recipes take from the papers: instructions, and the memory of the large model by its arithmetic."""

import re
from pathlib import Path

import yaml

from lightretriever.artifacts.pipeline.recipe import read_recipe
from lightretriever.artifacts.training.recipe import ContrastiveStage, TrainRecipe

RECIPES = Path(__file__).parents[2] / "recipes"
WRITTEN = yaml.safe_load((RECIPES / "papers" / "instructions.yaml").read_text(encoding="utf-8"))
QWEN = RECIPES / "train-qwen2.5-1.5b.yaml"


def test_all_instructions_of_the_paper_are_there() -> None:
    counts = [sum(map(len, WRITTEN["training"].values())), len(WRITTEN["beir"]), len(WRITTEN["cmteb"])]
    assert counts == [23, 15, 8]


def test_the_large_recipe_has_the_paper_s_sets_instructions_and_figures() -> None:
    recipe = read_recipe(QWEN, TrainRecipe)
    assert len(recipe.data.sets) == 23
    assert abs(sum(one.weight or 0 for one in recipe.data.sets) - 100) < 0.5
    own = {one.instructions for one in recipe.data.sets}
    assert all(tuple(several) in own for several in WRITTEN["training"].values())
    [stage] = recipe.stages
    assert isinstance(stage, ContrastiveStage)
    assert round(stage.warmup * stage.steps) == 100
    assert (stage.batch_size, stage.negatives, stage.flops.warmup) == (128, 7, stage.steps // 3)


def test_the_large_recipe_s_memory_is_that_of_its_formulas() -> None:
    """Weights, LoRA, states and sparse vectors, in GB."""
    hidden, layers, inner, keys, vocabulary = 1536, 28, 8960, 256, 151_936
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner
    weights = 2 * (layers * layer + vocabulary * hidden) / 1e9
    lora = 16 * layers * 16 * (2 * 2 * hidden + 2 * (hidden + keys) + 3 * (hidden + inner)) / 1e9
    states = 65_536 * (layers * hidden * 2 + 150_000) / 1e9
    sparse = 6 * 1024 * vocabulary * 4 / 1e9
    told = [float(value) for value in re.findall(r" ([\d.]+) GB$", QWEN.read_text(), flags=re.MULTILINE)]
    expected = [weights, lora, states, states / 4, sparse]
    assert [round(value, 1) for value in expected] == told
    (total,) = re.findall(r"sum: ([\d.]+) GB", QWEN.read_text())
    assert abs(weights + lora + states + sparse - float(total)) < 0.1
