"""Models, whole and with adapters, encoders, and GGUF files; damaged ones load or end in one line with a remedy."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)
from transformers.models.bert.modeling_bert import BertEmbeddings

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.loading import cut_at_longest, positions
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import ModelDtype
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from tests.support import models
from tests.support.biencoder import save_biencoder
from tests.support.commands import ROOT
from tests.support.models import load, save_model
from tests.support.tampering import edit_json
from tests.support.wordings import raises


@pytest.mark.parametrize("part", [AutoModelForCausalLM, AutoModel])
def test_an_adapter_changes_the_states_as_peft_itself_does(model_folder: Path, tmp_path: Path, part: Any) -> None:
    """Also one of the decoder alone: `AutoModel` checkpoints name their layers without the `model.` in front."""
    adapted = with_adapter(part.from_pretrained(model_folder))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([[1, 50, 60, 2]])
    loaded = load(model_folder, adapter=str(tmp_path / "adapter"))
    plain = load(model_folder)
    read = attrgetter("model" if part is AutoModelForCausalLM else "decoder")
    with torch.inference_mode():
        expected = adapted(input_ids=ids)[0]
        torch.testing.assert_close(read(loaded)(input_ids=ids)[0], expected, atol=1e-4, rtol=1e-4)
        assert (read(plain)(input_ids=ids)[0] - expected).abs().max() > 1e-2
    assert loaded.fingerprint != plain.fingerprint
    assert not [name for name, _ in loaded.model.named_parameters() if "lora" in name]


def test_end_and_start_tokens_can_be_chosen(model_folder: Path) -> None:
    backbone = load(model_folder, bos_token="<|endoftext|>", eos_token="<|im_start|>")
    token_id = backbone.tokenizer.token_id
    assert backbone.frame([9]) == [token_id("<|endoftext|>"), 9, token_id("<|im_start|>")]


@pytest.mark.parametrize(
    "wrong", [{"path": "no-such/model"}, {"path": "missing.gguf"}, {"eos_token": "<nothing>"}, {"adapter": "no-such"}]
)
def test_what_cannot_be_loaded_is_named(wrong: dict[str, Any], model_folder: Path) -> None:
    with raises(ModelError):
        load(**{"path": model_folder, **wrong})


def test_a_tokenizer_larger_than_the_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(tmp_path / "small")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "small" / file).write_bytes((model_folder / file).read_bytes())
    with raises(ModelError, naming="300"):
        load(tmp_path / "small")


def test_special_ids_beyond_the_embedding_are_no_obstacle(model_folder: Path, tmp_path: Path) -> None:
    """As in Gemma 3: a special token that only the multimodal model has an embedding for."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "surplus"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size - 5)  # as many rows as ids
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    backbone = load(folder)
    assert backbone.vocab_size == backbone.embedded + 1
    rows = token_rows(LanguageModel.of(backbone), "Find it", tmp_path)
    assert rows.shape == (backbone.vocab_size, 32)
    assert not rows[-1].any()
    assert rows[:-1].any(axis=1).all()


def test_a_centred_head_is_the_same_language_model(model_folder: Path, adapter: Path) -> None:
    """The adapter's file asks for it, the recipe can ask or refuse; probabilities stay, signs of logits don't."""
    (adapter / "lightretriever.json").write_text('{"centre_head": true}')

    def loaded(**options: Any) -> Backbone:
        return load(model_folder, adapter=str(adapter), **options)

    centred, plain, asked = loaded(), loaded(centre_head=False), loaded(centre_head=True)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert centred.head.mean(dim=0).abs().max() < 1e-5 < plain.head.mean(dim=0).abs().max()
    torch.testing.assert_close((hidden @ centred.head.T).softmax(1), (hidden @ plain.head.T).softmax(1))
    assert torch.equal(embedding_of(centred), embedding_of(plain))
    assert centred.fingerprint == asked.fingerprint != plain.fingerprint


def test_a_head_tied_to_the_embedding_is_untied_before_it_is_centred(model_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "tied"))
    edit_json(folder / "config.json", tie_word_embeddings=True)
    plain = load(folder)
    centred = load(folder, centre_head=True)
    assert torch.equal(embedding_of(centred), embedding_of(plain))
    assert not torch.equal(embedding_of(centred)[: centred.embedded], centred.head)


def test_an_adapter_of_another_model_is_refused(model_folder: Path, adapter: Path) -> None:
    with rewritten(adapter / "adapter_model.safetensors") as weights:
        for name in list(weights):
            weights[name.replace("layers", "blocks")] = weights.pop(name)
    with raises(ModelError, naming="adapter_config.json"):
        load(model_folder, adapter=str(adapter))


def test_dense_vectors_go_through_the_linear_map_of_an_adapter(model_folder: Path, adapter: Path) -> None:
    (adapter / "lightretriever.json").write_text("{}")
    plain = load(model_folder, adapter=str(adapter))
    (adapter / "lightretriever.json").write_text('{"projection": true}')
    weight = torch.randn(8, plain.hidden_size, generator=torch.Generator().manual_seed(1))
    save_file({"weight": weight}, adapter / "projection.safetensors")
    mapped = load(model_folder, adapter=str(adapter))
    assert (plain.vector_size, mapped.vector_size) == (32, 8)
    found, states = (LanguageModel.of(one).encode_documents(["music player"]).dense[0] for one in (mapped, plain))
    expected = weight.numpy() @ states.astype(np.float32)
    assert found @ expected / np.linalg.norm(found) / np.linalg.norm(expected) == pytest.approx(1, abs=1e-3)
    save_file({"weight": weight[:, :-1].contiguous()}, adapter / "projection.safetensors")
    with raises(ModelError, naming="not a linear map of 32 dimensions: its shape is (8, 31)"):
        load(model_folder, adapter=str(adapter))


def test_the_adapters_tokenizer_is_used(model_folder: Path, adapter: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(adapter)
    backbone = load(model_folder, adapter=str(adapter))
    assert backbone.eos_id == backbone.tokenizer.token_id("<|endoftext|>")


def test_a_checkpoint_without_its_head_is_refused(model_folder: Path, tmp_path: Path) -> None:
    """It would get a random one, another at every start."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "headless"))
    with rewritten(folder / "model.safetensors") as weights:
        del weights["lm_head.weight"]
    with raises(ModelError):
        load(folder)


def test_whatever_changes_a_vector_changes_the_fingerprint(model_folder: Path, tmp_path: Path, adapter: Path) -> None:
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))

    def identity(dtype: ModelDtype = "float32") -> str:
        return load(model, adapter=str(adapter), dtype=dtype).fingerprint

    found = [identity(), identity("bfloat16")]
    assert identity() == found[0]
    edit_json(model / "config.json", rms_norm_eps=0.5)
    found.append(identity())
    edit_json(adapter / "adapter_config.json", lora_alpha=1)
    found.append(identity())
    for file in (model / "model.safetensors", adapter / "adapter_model.safetensors"):
        with rewritten(file) as weights:
            for weight in weights.values():
                weight += 0.1
        found.append(identity())
    assert len(set(found)) == 6


@pytest.mark.slow
def test_a_hub_id_is_found_in_the_local_cache_and_hashed(model_folder: Path, tmp_path: Path) -> None:
    """The layout of the hub's cache, without the hub; in a process of its own, which reads the setting at its start."""
    repository = tmp_path / "cache" / "models--some--Tiny-1.5B"
    shutil.copytree(model_folder, repository / "snapshots" / "0123abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    script = (
        "import sys; from pathlib import Path\n"
        "from lightretriever.artifacts.pipeline.model import load_model\n"
        "from lightretriever.artifacts.pipeline.recipe import ModelRecipe\n"
        "for path in sys.argv[2:]:\n"
        "    backbone = load_model(ModelRecipe(path=path, device='cpu'))\n"
        "    print(backbone.name, backbone.fingerprint)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), "some/Tiny-1.5B", str(model_folder)]
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (name, first), (_, second) = (line.split() for line in done.stdout.splitlines())
    assert name == "Tiny-1.5B"
    assert first == second


def test_no_code_of_the_model_is_run(model_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "evil"))
    own = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    edit_json(folder / "config.json", model_type="evil", auto_map=own)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with raises(ModelError, naming="sentence-transformers"):
        load(folder)
    assert not (tmp_path / "ran").exists()


@contextmanager
def rewritten(file: Path) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the weights of a file, which has them as the block leaves them."""
    weights = load_file(file)
    yield weights
    save_file(weights, file, metadata={"format": "pt"})


def embedding_of(backbone: Backbone) -> torch.Tensor:
    return cast(torch.nn.Embedding, backbone.model.get_input_embeddings()).weight


def with_adapter(base: Any) -> PeftModel:
    torch.manual_seed(1)
    return get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False))


@pytest.fixture
def adapter(model_folder: Path, tmp_path: Path) -> Path:
    with_adapter(AutoModelForCausalLM.from_pretrained(model_folder)).save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


SHAPE = {"vocab_size": 400, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
ENCODERS = {
    "bert": (BertConfig(max_position_embeddings=40, num_hidden_layers=1, **SHAPE), 40),
    "electra": (ElectraConfig(max_position_embeddings=40, num_hidden_layers=1, embedding_size=32, **SHAPE), 40),
    "distilbert": (DistilBertConfig(max_position_embeddings=40, vocab_size=400, dim=32, n_layers=1, n_heads=4), 40),
    "roberta": (RobertaConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=1, **SHAPE), 40),
    "xlm-roberta": (XLMRobertaConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=1, **SHAPE), 40),
    "roberta, padding 0": (RobertaConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=0, **SHAPE), 41),
    "mpnet": (MPNetConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=1, **SHAPE), 40),
    "gpt2": (GPT2Config(vocab_size=400, n_positions=40, n_embd=32, n_layer=1, n_head=4), 40),
}


def save(folder: Path, config: PreTrainedConfig) -> Path:
    """A bi-encoder of this architecture, whose folder says nothing of a longest text."""
    save_biencoder(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    config.vocab_size = len(AutoTokenizer.from_pretrained(str(folder)))
    torch.manual_seed(3)
    AutoModel.from_config(config).save_pretrained(folder)
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        content = json.loads((folder / name).read_text())
        content.pop(key, None)
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", ENCODERS)
def test_texts_are_cut_at_what_the_positions_hold(kind: str, tmp_path: Path) -> None:
    config, longest = ENCODERS[kind]
    encoder = load_biencoder(str(save(tmp_path / "model", config)), device="cpu")
    assert positions(encoder.model) == encoder.longest == longest
    words = [" ".join(["music"] * count) for count in (longest - 2, longest - 1, 100)]
    assert encoder.are_cut(words) == [False, True, True]
    exact, _, long = encoder.encode_documents(words).dense
    assert long == pytest.approx(exact, abs=1e-6)
    assert encoder.encode_queries(words[2:]).dense[0] == pytest.approx(exact, abs=1e-6)


def test_a_model_without_such_a_table_is_left_as_it_is() -> None:
    assert positions(AutoModel.from_config(ModernBertConfig(num_hidden_layers=1, pad_token_id=0, **SHAPE))) is None


def test_what_a_folder_says_counts_where_it_is_less(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", ENCODERS["roberta"][0])
    for stated, longest in ((12, 12), (42, 40), (512, 40)):
        edit_json(folder / "sentence_bert_config.json", max_seq_length=stated)
        assert load_biencoder(str(folder), device="cpu").longest == longest


def test_a_model_that_fails_on_its_longest_text_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    model = SentenceTransformer(str(save(tmp_path / "model", ENCODERS["bert"][0])), device="cpu")
    (inner,) = (module for module in model.modules() if isinstance(module, BertEmbeddings))
    inner.register_buffer("position_ids", torch.arange(10)[None])
    with raises(ModelError, naming="sentence_bert_config.json"):
        cut_at_longest("model", model[0])


def write_gguf(path: Path, model_folder: Path) -> dict[str, np.ndarray]:
    """A quantised GGUF file of a tiny Llama with tied embeddings, and its dequantised tensors."""
    vocabulary = json.loads((model_folder / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    writer = gguf.GGUFWriter(path, "llama")
    sizes: dict[str, float] = {"context_length": 512, "embedding_length": 32, "block_count": 1, "vocab_size": size}
    sizes |= {"feed_forward_length": 64, "head_count": 4, "head_count_kv": 2}
    sizes |= {"rope_dimension_count": 8, "rope_freq_base": 10_000.0, "layer_norm_rms_eps": 1e-6}
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([tokenizer.id_to_token(index) or "" for index in range(size)])
    writer.add_token_types([3 if index < 3 else 1 for index in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random, kind = np.random.default_rng(5), gguf.GGMLQuantizationType.Q8_0
    shapes = {"token_embd": (size, 32), "blk.0.attn_q": (32, 32), "blk.0.attn_output": (32, 32)}
    shapes |= {"blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32)}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    plain = {}
    for name, shape in shapes.items():
        packed = gguf.quants.quantize(random.normal(0, 0.3, shape).astype(np.float32), kind)
        plain[name] = gguf.quants.dequantize(packed, kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


def test_a_gguf_file_is_read_bit_by_bit(model_folder: Path, tmp_path: Path) -> None:
    """As float32, so that an adapter can be merged into it, and with its own tokenizer."""
    plain = write_gguf(tmp_path / "tiny.gguf", model_folder)
    backbone = load(tmp_path / "tiny.gguf")
    weights = backbone.model.state_dict()
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"].numpy(), plain["token_embd"])
    np.testing.assert_array_equal(weights["model.layers.0.mlp.down_proj.weight"].numpy(), plain["blk.0.ffn_down"])
    np.testing.assert_array_equal(weights["model.layers.0.self_attn.v_proj.weight"].numpy(), plain["blk.0.attn_v"])
    expected = Tokenizer.from_file(str(model_folder / "tokenizer.json")).encode("plays music", add_special_tokens=False)
    assert backbone.tokenizer.encode("Plays Music").tolist() == expected.ids
    assert backbone.head.shape == (backbone.vocab_size, 32)
    assert backbone.name == "tiny"
    assert backbone.fingerprint == load(tmp_path / "tiny.gguf").fingerprint


STRANGE = pytest.mark.filterwarnings("ignore")  # of the libraries, for strange values
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "pointer": lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "list": lambda content: b"[1]",
    "text": lambda content: b"\x00\xffno file of this kind",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("damaged")
    model = save_model(place / "model", "llama")
    wanted = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), wanted).save_pretrained(str(place / "adapter"))
    (place / "adapter" / "lightretriever.json").write_text(
        json.dumps({"centre_head": False, "layers": 2, "pooling": "end", "bos_token": None, "projection": True})
    )
    save_file({"weight": torch.ones(8, models.SHAPE["hidden_size"])}, place / "adapter" / "projection.safetensors")
    return {"model": model, "adapter": place / "adapter", "bi-encoder": save_biencoder(place / "bi")}


def outcome(folders: dict[str, Path], damaged: str) -> str:
    """What a build says that reads a folder first; nothing where it succeeds. No other error than ModelError is one."""
    told = None
    try:
        if damaged == "bi-encoder":
            load_biencoder(str(folders["bi-encoder"]), device="cpu").encode_queries(["music player"])
        else:
            adapter = str(folders["adapter"]) if damaged == "adapter" else None
            models.load(folders["model"], adapter=adapter).document_ids(["music"], 20)
    except ModelError as error:
        told = error
    assert told is None or (told.remedy and "\n" not in told.message)
    return str(told or "")


@STRANGE
@pytest.mark.parametrize("damaged", ["model", "adapter", "bi-encoder"])
def test_damaged_files_end_in_one_line(folders: dict[str, Path], damaged: str) -> None:
    assert outcome(folders, damaged) == ""
    for file in sorted(folders[damaged].rglob("*")):
        if file.is_dir() or file.suffix == ".md":
            continue
        content = file.read_bytes()
        for name, damage in DAMAGES.items():
            file.write_bytes(damage(content))
            told = outcome(folders, damaged)
            if name in ("empty", "pointer") and told:
                assert file.name in told, (name, told)
        file.unlink()
        outcome(folders, damaged)
        file.write_bytes(content)


@STRANGE
def test_a_pickle_is_no_model(folders: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(folders["model"], tmp_path / "model"))
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": test_a_pickle_is_no_model}))
    told = outcome({"model": place}, "model")
    assert told.startswith(f"{place}: the model can't be loaded: UnpicklingError: ")


@STRANGE
@pytest.mark.parametrize("name", ["empty", "pointer", "text"])
def test_a_gguf_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(DAMAGES[name](b""))
    assert "tiny.gguf: the model can't be loaded" in outcome({"model": file}, "model")
    for length in range(4, 24, 3):  # cut in its header
        file.write_bytes((b"GGUF" + b"\x03\0\0\0" + b"\x01" * 16)[:length])
        assert "tiny.gguf: the model can't be loaded" in outcome({"model": file}, "model")
