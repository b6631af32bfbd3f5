"""The models of a recipe: one for dense vectors, and for impacts the same one, another one, or none (BM25).

sentence-transformers is slow to import, so that it is loaded here, where a recipe needs it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from lightretriever.artifacts.bundle.manifest import ImpactKind
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import adapter_settings, load_model
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, ModelRecipe, Recipe, is_of_sentence_transformers

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.sentence_models import SparseModel


@dataclass(frozen=True)
class Encoders:
    """The encoders of a recipe: `dense` for the dense leg, and `sparse` for the sparse one, None where
    `dense` gives the impacts as well or they are BM25. `settings` are those of the model that makes the terms, with the
    kind of impacts."""

    dense: Encoder
    sparse: "SparseModel | LanguageModel | None"
    settings: EncodeRecipe

    @property
    def models(self) -> "list[Encoder | SparseModel]":
        """The models, that of the dense leg first."""
        return [self.dense] if self.sparse is None else [self.dense, self.sparse]

    @property
    def fingerprint(self) -> str:
        """Digest of all that vectors and impacts depend on."""
        first, *others = (model.fingerprint for model in self.models)
        return sha256(" ".join([first, *others]).encode()).hexdigest() if others else first

    @property
    def impacts(self) -> ImpactKind:
        """The kind of impacts that documents have."""
        return self.settings.impacts or "learned"

    @cached_property
    def apart(self) -> bool:
        """True if the terms are tokens of another tokenizer than that of the dense leg."""
        return self.sparse is not None and _reading(self.dense) != _reading(self.sparse)

    @property
    def query_weights(self) -> Float32Array | None:
        """Weights (V,) that the sparse model gives the tokens of a query; None where it says nothing, and where
        impacts are BM25, which has the IDF in itself."""
        if self.sparse is None or isinstance(self.sparse, LanguageModel) or self.impacts == "bm25":
            return None
        return self.sparse.weights

    @property
    def one_by_one(self) -> bool:
        """True if one of the models reads each document by itself."""
        return self.settings.batch_tokens is None and any(model.one_by_one for model in self.models)

    def encode_documents(self, texts: Sequence[str], vectors: Float32Array | None = None) -> Encoded:
        """Dense vectors, unless these are given, and impacts unless they are BM25. Raises ModelError."""
        encoded = self.dense.encode_documents(texts) if vectors is None else Encoded(vectors)
        if self.sparse is None:
            return encoded
        return replace(encoded, sparse=None if self.impacts == "bm25" else self.sparse.encode_impacts(texts))

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each document is longer than one of the models reads."""
        return [any(cut) for cut in zip(*(model.are_cut(texts) for model in self.models), strict=True)]


def load_encoders(recipe: Recipe) -> Encoders:
    """Load the models of a recipe. Raises ModelError."""
    settings = recipe.encode
    dense = settings if recipe.sparse is None else settings.model_copy(update={"impacts": "bm25"})
    encoder = load_encoder(recipe.model, dense, biencoder=recipe.encoder)
    if recipe.sparse is not None:
        sparse = load_sparse_encoder(recipe.sparse, settings)
        return Encoders(encoder, sparse, sparse.settings)
    if isinstance(encoder, LanguageModel):
        return Encoders(encoder, None, encoder.settings)
    return Encoders(encoder, None, settings.model_copy(update={"impacts": "bm25"}))


def load_encoder(model: ModelRecipe, settings: EncodeRecipe, *, biencoder: bool) -> Encoder:
    """Load a model as a bi-encoder, or several joined by " + ", or as a language model. Raises ModelError."""
    if biencoder:
        from lightretriever.artifacts.pipeline.sentence_models import load_biencoders  # slow to import

        return load_biencoders(model.path, dtype=model.dtype, device=model.device, lowercase=settings.lowercase)
    return LanguageModel.of(load_model(model, lowercase=settings.lowercase), resolved(settings, model.adapter))


def load_sparse_encoder(model: ModelRecipe, settings: EncodeRecipe) -> "SparseModel | LanguageModel":
    """Load what makes the impacts: a SparseEncoder folder of sentence-transformers, or a language model. Raises
    ModelError."""
    if is_of_sentence_transformers(model.path):
        from lightretriever.artifacts.pipeline.sentence_models import load_sparse_model  # slow to import

        return load_sparse_model(model, resolved(settings, None))
    backbone = load_model(model, lowercase=settings.lowercase)
    return LanguageModel.of(backbone, resolved(settings, model.adapter))


def resolved(settings: EncodeRecipe, adapter: str | None) -> EncodeRecipe:
    """Settings whose kind of impacts is what the `adapter` was trained for, unless they name one, and which keep all
    terms of BM25, unless they name a number. Raises ModelError."""
    trained = {} if adapter is None else adapter_settings(adapter)
    kind = settings.impacts or ("bm25" if trained.get("projection") else "learned")
    cut = settings.top_k if kind == "learned" or "top_k" in settings.model_fields_set else None
    return settings.model_copy(update={"impacts": kind, "top_k": cut})


def _reading(model: "Encoder | SparseModel") -> list[Any]:
    """The parts of a model's tokenizer that decide the tokens of a text, and their number; framing by special tokens,
    and where a text is cut, do not."""
    content = json.loads(model.tokenizer_json)
    return [model.tokenizer.vocab_size, *(content.get(part) for part in ("model", "normalizer", "pre_tokenizer"))]
