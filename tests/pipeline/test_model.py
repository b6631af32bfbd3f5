import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import ModelDtype
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.support.models import load, save_model

REPOSITORY = Path(__file__).resolve().parents[2]


def test_adapter_changes_the_states_as_peft_itself_does(model_folder: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    torch.manual_seed(1)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules=["q_proj"]))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([[1, 50, 60, 2]])
    with torch.inference_mode():
        expected = adapted(input_ids=ids).logits
    loaded = load(model_folder, tmp_path / "w", adapter=str(tmp_path / "adapter"))
    plain = load(model_folder, tmp_path / "w")
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
        assert (plain.model(input_ids=ids).logits - expected).abs().max() > 1e-2
    assert loaded.fingerprint != plain.fingerprint


def test_head_has_one_row_per_tokenizer_id(model_folder: Path, tmp_path: Path) -> None:
    backbone = load(model_folder, tmp_path)
    assert backbone.head.shape == (backbone.vocab_size, backbone.hidden_size)
    assert backbone.model.config.vocab_size == backbone.vocab_size + 5


def test_end_and_start_tokens_can_be_chosen(model_folder: Path, tmp_path: Path) -> None:
    backbone = load(model_folder, tmp_path, bos_token="<|endoftext|>", eos_token="<|im_start|>")
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
        load(arguments.pop("path"), tmp_path, **arguments)  # type: ignore[arg-type]


def test_a_tokenizer_larger_than_the_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(tmp_path / "small")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "small" / file).write_bytes((model_folder / file).read_bytes())
    with pytest.raises(ModelError, match=r"tokens beyond the 100 rows of the model's embedding, such as .* 100\."):
        load(tmp_path / "small", tmp_path)


def test_special_ids_beyond_the_embedding_are_no_obstacle(model_folder: Path, tmp_path: Path) -> None:
    """As in Gemma 3: a special token that only the multimodal model has an embedding for."""
    folder = copy(model_folder, tmp_path / "surplus")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size - 5)  # as many rows as ids
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    backbone = load(folder, tmp_path)
    assert backbone.vocab_size == backbone.embedded + 1
    rows = token_rows(LanguageModel.of(backbone), "Find it", tmp_path)
    assert rows.shape == (backbone.vocab_size, 32)
    assert not rows[-1].any()
    assert rows[:-1].any(axis=1).all()


def test_an_adapter_of_the_decoder_alone_is_applied(model_folder: Path, tmp_path: Path) -> None:
    """`AutoModel` checkpoints name their layers without the `model.` in front."""
    base = AutoModel.from_pretrained(model_folder)
    torch.manual_seed(1)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules=["q_proj"]))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([[1, 50, 60, 2]])
    loaded = load(model_folder, tmp_path / "w", adapter=str(tmp_path / "adapter"))
    with torch.inference_mode():
        expected = adapted(input_ids=ids)[0]
        torch.testing.assert_close(loaded.decoder(input_ids=ids)[0], expected, atol=1e-4, rtol=1e-4)
    assert not [name for name, _ in loaded.model.named_parameters() if "lora" in name]


def test_a_centred_head_is_the_same_language_model(model_folder: Path, tmp_path: Path) -> None:
    """The adapter's file asks for it, the recipe can ask or refuse; probabilities stay, signs of logits don't."""
    adapter = save_adapter(model_folder, tmp_path / "adapter")
    (adapter / "lightretriever.json").write_text('{"centre_head": true}')

    def loaded(**options: Any) -> Backbone:
        return load(model_folder, tmp_path, adapter=str(adapter), **options)

    centred, plain, asked = loaded(), loaded(centre_head=False), loaded(centre_head=True)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert centred.head.mean(dim=0).abs().max() < 1e-5 < plain.head.mean(dim=0).abs().max()
    torch.testing.assert_close((hidden @ centred.head.T).softmax(1), (hidden @ plain.head.T).softmax(1))
    assert torch.equal(embedding_of(centred), embedding_of(plain))
    assert centred.fingerprint == asked.fingerprint != plain.fingerprint


def test_a_head_tied_to_the_embedding_is_untied_before_it_is_centred(model_folder: Path, tmp_path: Path) -> None:
    folder = copy(model_folder, tmp_path / "tied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    plain = load(folder, tmp_path)
    centred = load(folder, tmp_path, centre_head=True)
    assert torch.equal(embedding_of(centred), embedding_of(plain))
    assert not torch.equal(embedding_of(centred)[: centred.embedded], centred.head)


def test_an_adapter_of_another_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(model_folder, tmp_path / "adapter")
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {name.replace("layers", "blocks"): value for name, value in weights.items()},
        adapter / "adapter_model.safetensors",
    )
    with pytest.raises(ModelError, match=r"adapter: the adapter can't be loaded onto .*missing adapter keys"):
        load(model_folder, tmp_path / "w", adapter=str(adapter))


@pytest.mark.parametrize(("name", "value"), [("term_thresholds", 0.95), ("bm25", {"factor": 2.0, "k1": 0.9, "b": 0.4})])
def test_an_adapter_that_only_older_versions_read_is_refused(
    model_folder: Path, tmp_path: Path, name: str, value: object
) -> None:
    adapter = save_adapter(model_folder, tmp_path / "adapter")
    (adapter / "lightretriever.json").write_text(json.dumps({name: value}))
    with pytest.raises(ModelError, match=f"adapter: was trained with {name}, which only older versions read"):
        load(model_folder, tmp_path / "w", adapter=str(adapter))
    (adapter / "lightretriever.json").write_text(json.dumps({name: None}))
    load(model_folder, tmp_path / "w", adapter=str(adapter))


def test_the_adapters_tokenizer_is_used(model_folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(model_folder, tmp_path / "adapter")
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(adapter)
    backbone = load(model_folder, tmp_path / "w", adapter=str(adapter))
    assert backbone.eos_id == backbone.tokenizer.token_id("<|endoftext|>")


def test_a_model_without_a_start_token_has_none(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "qwen2", "qwen2", bos_token=None)
    backbone = load(folder, tmp_path)
    assert backbone.frame([9]) == [9, backbone.eos_id]
    assert instruction_prefix(backbone, "") == [backbone.eos_id]


def test_a_checkpoint_without_its_head_is_refused(model_folder: Path, tmp_path: Path) -> None:
    """It would get a random one, another at every start."""
    folder = copy(model_folder, tmp_path / "headless")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if name != "lm_head.weight"},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ModelError, match=r"lacks 1 of the model's weights, such as lm_head\.weight"):
        load(folder, tmp_path)


@pytest.mark.parametrize(
    "change", ["config.json", "adapter_config.json", "adapter_model.safetensors", "model.safetensors", "dtype"]
)
def test_whatever_changes_a_vector_changes_the_fingerprint(model_folder: Path, tmp_path: Path, change: str) -> None:
    model = copy(model_folder, tmp_path / "model")
    adapter = save_adapter(model_folder, tmp_path / "adapter")

    def identity(dtype: ModelDtype = "float32") -> str:
        return load(model, tmp_path, adapter=str(adapter), dtype=dtype).fingerprint

    before = identity()
    assert identity() == before
    if change == "dtype":
        assert identity("bfloat16") != before
        return
    file = (adapter if change.startswith("adapter") else model) / change
    if change.endswith(".json"):
        content = json.loads(file.read_text())
        key, value = ("lora_alpha", 1) if "adapter" in change else ("rms_norm_eps", 0.5)
        content[key] = value
        file.write_text(json.dumps(content))
    else:
        weights = load_file(file)
        save_file({name: value + 0.1 for name, value in weights.items()}, file, metadata={"format": "pt"})
    assert identity() != before


@pytest.mark.slow
def test_a_hub_id_is_found_in_the_local_cache_and_hashed(model_folder: Path, tmp_path: Path) -> None:
    """The layout of the hub's cache, without the hub; in a process of its own, which reads the setting at its start."""
    repository = tmp_path / "cache" / "models--some--Tiny-1.5B"
    copy(model_folder, repository / "snapshots" / "0123abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    script = (
        "import sys; from pathlib import Path\n"
        "from artifacts.pipeline.model import load_model\n"
        "from artifacts.pipeline.recipe import ModelRecipe\n"
        "for path in sys.argv[2:]:\n"
        "    backbone = load_model(ModelRecipe(path=path, device='cpu'), Path(sys.argv[1]))\n"
        "    print(backbone.name, backbone.fingerprint)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), "some/Tiny-1.5B", str(model_folder)]
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    (name, first), (_, second) = (line.split() for line in done.stdout.splitlines())
    assert name == "Tiny-1.5B"
    assert first == second


def test_no_code_of_the_model_is_run(model_folder: Path, tmp_path: Path) -> None:
    folder = copy(model_folder, tmp_path / "evil")
    content = json.loads((folder / "config.json").read_text())
    content["model_type"] = "evil"
    content["auto_map"] = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="code of its own, which is never run"):
        load(folder, tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("device", "message"), [("nonsense", "unknown to torch"), ("cuda", "no CUDA device")])
def test_an_impossible_device_is_named(
    model_folder: Path, tmp_path: Path, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=message):
        load(model_folder, tmp_path, device=device)


def test_truncated_weights_are_named(model_folder: Path, tmp_path: Path) -> None:
    folder = copy(model_folder, tmp_path / "short")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="short: the model can't be loaded"):
        load(folder, tmp_path)


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def embedding_of(backbone: Backbone) -> torch.Tensor:
    return cast(torch.nn.Embedding, backbone.model.get_input_embeddings()).weight


def save_adapter(model_folder: Path, folder: Path) -> Path:
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules=["q_proj"])
    get_peft_model(base, config).save_pretrained(str(folder))
    return folder
