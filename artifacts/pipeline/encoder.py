"""The base of models that read texts.

A language model (`pipeline.language_model`) and bi-encoders (`pipeline.sentence_models`) make dense vectors, a language
model and a SparseEncoder of sentence-transformers impacts. `pipeline.encoders` puts together those of a recipe.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from lightretriever.artifacts.dtypes import Float32Array, Int32Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.reports import ProgressBar
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

PART = 8192
"""Rows of a token table in one file, the most that a kill can cost."""

StatesOf: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Encodes single tokens: ids (n,) → states (n, H)."""


@dataclass(frozen=True)
class Encoded:
    """Vectors of n texts: `dense` (n, H) float32, L2-normalised, and a `sparse` row of each.

    A sparse row is token ids (m,) int32, ascending, and what they weigh (m,): impacts, uint16, in a document, float32
    in a query. None stands for an encoder without a sparse side.
    """

    dense: Float32Array
    sparse: list[tuple[Int32Array, npt.NDArray[Any]]] | None = None


@dataclass(frozen=True, kw_only=True)
class TextModel(ABC):
    """Facts of a loaded model.

    `tokenizer` makes the tokens of a query, without special ones; `tokenizer_json` is its file, as a bundle holds it.
    `fingerprint` stands for all that decides a vector: weights, tokenizer, what frames a text, number type,
    lowercasing. The model reads the first `longest` tokens of a text, special ones included (None: all).
    """

    name: str
    fingerprint: str
    tokenizer: TextTokenizer
    tokenizer_json: bytes
    device: torch.device
    longest: int | None

    @property
    def one_by_one(self) -> bool:
        """True if the model reads each document by itself. On a CPU a transformer does: this takes about as long, and
        no vector depends in its last bits on the texts beside."""
        return self.device.type == "cpu"

    @abstractmethod
    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each document is longer than it reads."""


@dataclass(frozen=True, kw_only=True)
class Encoder(TextModel):
    """A dense encoder of documents and whole queries, whose token rows can stand for it in queries.

    `hidden_size` is H, the size of its vectors; of the V ids of the tokenizer the model has an `embedded` number, the
    others are special tokens no text contains. `has_sparse` says whether it gives sparse rows, too.
    """

    hidden_size: int
    embedded: int
    has_sparse: bool = False

    @abstractmethod
    def encode_documents(self, texts: Sequence[str]) -> Encoded:
        """Vectors of documents, and impacts if the same pass makes them. Raises ModelError for what it can't read."""

    @abstractmethod
    def encode_queries(self, texts: Sequence[str], instruction: str = "") -> Encoded:
        """Vectors of whole queries, which the mean of token rows stands for. Raises ModelError."""

    @abstractmethod
    def token_states(self, instruction: str = "") -> StatesOf:
        """How it reads tokens by themselves behind an instruction."""


def rows_per_pass(encoder: Encoder) -> int:
    """Tokens of a forward pass: more than 128 fall out of a CPU's caches."""
    return 512 if encoder.device.type == "cuda" else 128


def token_rows(encoder: Encoder, instruction: str, work: Path) -> Float32Array:
    """The states of all tokens by themselves, (V, H) float32; ids without an embedding get rows of zeros.

    They are *not* normalised: a query is normalise(mean_i E[t_i]). A stopped call goes on after the last finished part
    of `PART` rows; parts lie in `work` as `part-*.npy` until the caller removes them. Raises ModelError for states that
    are not finite.
    """
    rows = np.zeros((encoder.tokenizer.vocab_size, encoder.hidden_size), dtype=np.float32)
    with torch.inference_mode(), ProgressBar("table", total=encoder.embedded, unit="tokens") as progress:
        states_of = encoder.token_states(instruction)
        for start in range(0, encoder.embedded, PART):
            end, file = min(start + PART, encoder.embedded), work / f"part-{start:07d}.npy"
            if file.is_file():
                progress.skip(end - start)
            else:
                write_array(file, _states(states_of, start, end, rows_per_pass(encoder), progress))
            rows[start:end] = read_array(file)
    return rows


def _states(states_of: StatesOf, start: int, end: int, batch: int, progress: ProgressBar) -> Float32Array:
    """Rows `start` to `end`, (end - start, H) float32."""
    states = []
    for first in range(start, end, batch):
        tokens = torch.arange(first, min(first + batch, end))
        states.append(states_of(tokens).float().cpu())
        progress.advance(len(tokens))
    rows: Float32Array = torch.cat(states).numpy()
    if not np.isfinite(rows).all():
        bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ModelError(f"Token {bad} has a state that is not finite.", remedy="Set model.dtype to float32.")
    return rows
