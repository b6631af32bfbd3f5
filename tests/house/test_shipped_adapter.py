"""The adapter in the repository: complete, small, sound, and open about its data."""

import json
from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.pipeline.adapter_files import THRESHOLDS_FILE, load_thresholds
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.training.recipe import SetRecipe, load_train_recipe
from peft import LoraConfig
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "recipes" / "adapters" / "smollm2-135m"
RECIPE = ROOT / "recipes" / "train-smollm2-open-cpu.yaml"
VOCABULARY = 49_152
NOT_FOR_SHIPPING = ("non-commercial", "research only", "CC-BY-NC")


def test_it_is_small_enough_for_git() -> None:
    assert sum(file.stat().st_size for file in ADAPTER.iterdir()) < 40e6


def test_peft_reads_it() -> None:
    config = LoraConfig.from_pretrained(str(ADAPTER))
    recipe = load_train_recipe(RECIPE)
    assert (config.r, config.lora_alpha) == (recipe.lora.r, recipe.lora.alpha)
    assert config.base_model_name_or_path == recipe.model.name
    tensors = load_file(ADAPTER / "adapter_model.safetensors")
    assert recipe.lora.layers is not None
    assert len(tensors) == 2 * recipe.lora.layers * len(recipe.lora.targets)
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), name
        assert tensor.any(), f"{name} was never trained"


def test_it_says_how_it_was_trained() -> None:
    recipe, settings = load_train_recipe(RECIPE), json.loads((ADAPTER / "lightretriever.json").read_text())
    for key in ("idf_rows", "lowercase", "term_thresholds"):
        assert settings[key] == getattr(recipe, key), key
    assert settings["centre_head"] == recipe.model.centre_head
    assert settings["bos_token"] == recipe.model.bos_token
    assert load_idf(ADAPTER / "idf.npy", VOCABULARY).shape == (VOCABULARY,)
    thresholds = load_thresholds(ADAPTER / THRESHOLDS_FILE, VOCABULARY).numpy()
    assert np.count_nonzero(thresholds) > VOCABULARY / 2


@pytest.mark.parametrize("one", load_train_recipe(RECIPE).data.sets, ids=lambda one: one.name)
def test_the_model_card_names_every_set_with_a_licence_that_allows_it(one: SetRecipe) -> None:
    card = (ADAPTER / "README.md").read_text()
    assert one.licence
    assert not any(word.casefold() in one.licence.casefold() for word in NOT_FOR_SHIPPING)
    row = next(line for line in card.splitlines() if line.startswith(f"| {one.name} |"))
    assert one.licence in row
    assert one.instruction in row
