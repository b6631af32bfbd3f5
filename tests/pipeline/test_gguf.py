import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

from tests.support.models import SHAPE, load

QUANTISATION = gguf.GGMLQuantizationType.Q8_0


def write_gguf(path: Path, model_folder: Path) -> dict[str, np.ndarray]:
    """A quantised GGUF file of a tiny Llama with tied embeddings, and its dequantised tensors."""
    vocabulary = json.loads((model_folder / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    writer = gguf.GGUFWriter(path, "llama")
    sizes: dict[str, float] = {
        "context_length": 512,
        "embedding_length": 32,
        "block_count": 1,
        "feed_forward_length": 64,
    }
    sizes |= {"head_count": SHAPE["num_attention_heads"], "head_count_kv": SHAPE["num_key_value_heads"]}
    sizes |= {"rope_dimension_count": 8, "rope_freq_base": 10_000.0, "layer_norm_rms_eps": 1e-6, "vocab_size": size}
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([tokenizer.id_to_token(index) or "" for index in range(size)])
    writer.add_token_types([3 if index < 3 else 1 for index in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(5)
    shapes = {
        "token_embd": (size, 32),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    plain = {}
    for name, shape in shapes.items():
        packed = gguf.quants.quantize(random.normal(0, 0.3, shape).astype(np.float32), QUANTISATION)
        plain[name] = gguf.quants.dequantize(packed, QUANTISATION)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=QUANTISATION)
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
