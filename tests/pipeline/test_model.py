from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from artifacts.errors import ModelError
from artifacts.pipeline.model import load_backbone, save_tokenizer


def test_adapter_changes_the_states_as_peft_itself_does(model_folder: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    torch.manual_seed(1)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules=["q_proj"]))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([[1, 50, 60, 2]])
    with torch.inference_mode():
        expected = adapted(input_ids=ids).logits
    loaded = load_backbone(str(model_folder), work=tmp_path / "w", adapter=str(tmp_path / "adapter"), device="cpu")
    plain = load_backbone(str(model_folder), work=tmp_path / "w", device="cpu")
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
        assert (plain.model(input_ids=ids).logits - expected).abs().max() > 1e-2
    assert loaded.fingerprint != plain.fingerprint


def test_head_has_one_row_per_tokenizer_id(model_folder: Path, tmp_path: Path) -> None:
    backbone = load_backbone(str(model_folder), work=tmp_path, device="cpu")
    assert backbone.head.shape == (backbone.vocab_size, backbone.hidden_size)
    assert backbone.model.config.vocab_size == backbone.vocab_size + 5


def test_end_and_start_tokens_can_be_chosen(model_folder: Path, tmp_path: Path) -> None:
    backbone = load_backbone(
        str(model_folder), work=tmp_path, bos_token="<|endoftext|>", eos_token="<|im_start|>", device="cpu"
    )
    token_id = backbone.tokenizer.token_id
    assert backbone.frame([9]) == [token_id("<|endoftext|>"), 9, token_id("<|im_start|>")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "no-such-folder/model"}, "no-such-folder/model: the model can't be loaded"),
        ({"path": "missing.gguf"}, "missing.gguf: no such GGUF file"),
        ({"eos_token": "<nothing>"}, "'<nothing>' is not in the vocabulary"),
        ({"adapter": "no-such-adapter"}, "no-such-adapter: the adapter can't be loaded"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    arguments: dict[str, str], message: str, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = {"path": str(model_folder), **arguments}
    with pytest.raises(ModelError, match=message):
        load_backbone(arguments.pop("path"), work=tmp_path, device="cpu", **arguments)  # type: ignore[arg-type]


def test_a_tokenizer_larger_than_the_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(tmp_path / "small")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "small" / file).write_bytes((model_folder / file).read_bytes())
    with pytest.raises(ModelError, match=r"embedding only 100 rows"):
        load_backbone(str(tmp_path / "small"), work=tmp_path, device="cpu")


def test_the_tokenizer_file_is_the_models_own(model_folder: Path, tmp_path: Path) -> None:
    first = save_tokenizer(str(model_folder), tmp_path / "a").read_bytes()
    assert save_tokenizer(str(model_folder), tmp_path / "b").read_bytes() == first
