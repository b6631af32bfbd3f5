"""Recipes: what they take from the papers, with the memory of the large model by its arithmetic; and the adapter in the
repository, complete, small, sound, and open about its data."""

import gzip
import json
import re
from pathlib import Path

import yaml
from peft import LoraConfig
from safetensors.torch import load_file

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


ROOT = Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "recipes" / "adapters" / "smollm2-135m"
NOT_FOR_SHIPPING = ("non-commercial", "research only", "CC-BY-NC")
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


def test_the_adapters_log_has_every_step_of_its_card() -> None:
    card = (ADAPTER / "README.md").read_text()
    steps = [int(count.replace(",", "")) for count in re.findall(r"^- regression: ([\d,]+) steps", card, re.MULTILINE)]
    with gzip.open(ADAPTER / "log.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for number, count in enumerate(steps):
        assert [line["step"] for line in lines if line["stage"] == number and "loss" in line] == list(range(count))
    compared = [line["held_out"]["cosine"] for line in lines if "held_out" in line]
    assert compared[-1] == max(compared)
    assert f"{compared[-1]:.3f}".removeprefix("0") in card


def test_the_model_card_names_the_licence_of_every_set() -> None:
    card = (ADAPTER / "README.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card.splitlines() if line.startswith("|")]
    assert rows[0][3] == "licence"
    assert len(rows) == 6
    for row in rows[2:]:
        assert row[3]
        assert not any(word.casefold() in row[3].casefold() for word in NOT_FOR_SHIPPING)
