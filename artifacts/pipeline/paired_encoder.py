"""Two models read the documents: one for the dense leg, whose token rows stand for it in queries, one for the sparse
leg."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.manifest import ImpactKind
from lightretriever.artifacts.pipeline.bm25_impacts import ImpactRow
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder, StatesOf, resolved
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import load_model
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, ModelRecipe, is_of_sentence_transformers
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.sparse_model import SparseModel

__all__ = ["PairedEncoder", "load_sparse_encoder", "paired"]


@dataclass(frozen=True)
class PairedEncoder(Encoder):
    """The dense side of one encoder and the sparse side of another. `apart` says whether they have different
    tokenizers; `tokenizer` is that of the dense side."""

    dense: Encoder
    sparse: "SparseModel | LanguageModel"
    apart: bool

    @property
    def sparse_tokenizer(self) -> TextTokenizer:
        """The sparse side's tokenizer, or the one that both sides have."""
        return self.sparse.tokenizer if self.apart else self.tokenizer

    @property
    def settings(self) -> EncodeRecipe:
        """The sparse side's settings."""
        return self.sparse.settings

    @property
    def impacts(self) -> ImpactKind:
        """The sparse side's kind of impacts."""
        return self.sparse.impacts

    @property
    def query_weights(self) -> npt.NDArray[np.float32] | None:
        """What the sparse side says that tokens of a query weigh, (V,); None where it says nothing."""
        return self.sparse.query_weights

    def encode_documents(self, texts: Sequence[str], *, progress: ProgressBar | None = None) -> Encoded:
        """Dense vectors by one model, impacts by the other. Raises ModelError."""
        return Encoded(self.dense.encode_documents(texts, progress=progress).dense, self.encode_impacts(texts))

    def encode_impacts(self, texts: Sequence[str]) -> list[ImpactRow] | None:
        """Impacts of documents; None where they are BM25. Raises ModelError."""
        return self.sparse.encode_documents(texts).sparse if self.has_sparse else None

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """Whether each document is longer than one of the two reads."""
        return [a or b for a, b in zip(self.dense.are_cut(texts), self.sparse.are_cut(texts), strict=True)]

    def encode_queries(
        self, texts: Sequence[str], instruction: str = "", *, progress: ProgressBar | None = None
    ) -> Encoded:
        """Dense vectors of whole queries. Raises ModelError."""
        return Encoded(self.dense.encode_queries(texts, instruction, progress=progress).dense)

    def token_states(self, instruction: str = "") -> StatesOf:
        """How the dense side reads tokens by themselves."""
        return self.dense.token_states(instruction)

    def check_tokens(self, texts: Sequence[str]) -> None:
        """Raise ModelError for a text whose tokens are not those that the dense side reads."""
        self.dense.check_tokens(texts)


def paired(dense: Encoder, sparse: "SparseModel | LanguageModel") -> PairedEncoder:
    """Join two encoders."""
    names = ("tokenizer", "tokenizer_json", "device", "hidden_size", "embedded", "longest")
    return PairedEncoder(
        name=f"{dense.name} + {sparse.name}",
        fingerprint=sha256(f"{dense.fingerprint} {sparse.fingerprint}".encode()).hexdigest(),
        **{name: getattr(dense, name) for name in names},
        dense=dense,
        sparse=sparse,
        apart=_reading(dense) != _reading(sparse) or dense.vocab_size != sparse.vocab_size,
    )


def _reading(encoder: Encoder) -> list[Any]:
    """The parts of an encoder's tokenizer that decide the tokens of a text; framing by special tokens, and where a text
    is cut, do not."""
    content = json.loads(encoder.tokenizer_json)
    return [content.get(part) for part in ("model", "normalizer", "pre_tokenizer")]


def load_sparse_encoder(model: ModelRecipe, settings: EncodeRecipe, work: Path) -> "SparseModel | LanguageModel":
    """Load what makes the impacts: a SparseEncoder folder of sentence-transformers, or a language model. Raises
    ModelError."""
    if is_of_sentence_transformers(model.path):
        from lightretriever.artifacts.pipeline.sparse_model import load_sparse_model  # slow to import

        return load_sparse_model(model, resolved(settings, None))
    backbone = load_model(model, work / "sparse", lowercase=settings.lowercase)
    return LanguageModel.of(backbone, resolved(settings, model.adapter))
