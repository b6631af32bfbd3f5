"""Queries encoded by a whole model, against the frozen documents of a bundle: what the token table is measured by."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.evaluation.runs import Ranking, Run, ranking
from lightretriever.artifacts.evaluation.searching import QueryVectors, Searcher
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, ModelRecipe, is_of_sentence_transformers
from lightretriever.artifacts.reports import tracked
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.tokens.tokenizer import text_of

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encoder import Encoder

_READ, _AT_ONCE = 512, 16  # tokens of a document, and documents read together
_OTHER_MODEL = "Give the model that encoded the documents."
_NO_TERMS = (np.empty(0, np.int32), np.empty(0, np.float32))


@dataclass(frozen=True)
class FullQueries:
    """Queries by text as a whole model encoded them. Without `sparse`, the model gives dense vectors alone."""

    queries: Mapping[str, QueryVectors]
    sparse: bool

    def gives(self, system: str) -> bool:
        """True if `system` is one of the full model's."""
        return system in ({"full-dense", "full-hybrid"} | ({"full-sparse"} if self.sparse else set()))

    def searcher(self, light: Searcher, task: str) -> Searcher:
        """A searcher for these queries. A bi-encoder's are joined with the sparse ones of `light`, the bundle's own."""
        if self.sparse:
            return light.with_vectors(self.queries)
        items = self.queries.items()
        return light.with_vectors(
            {text: replace(light.terms(text, task) or query, dense=query.dense) for text, query in items}
        )


@dataclass(frozen=True)
class QueryModel:
    """A whole model that reads queries for the documents of a bundle; with `sparse`, whose impacts are its own, it
    gives sparse queries, too."""

    encoder: "Encoder"
    bundle: Bundle
    sparse: bool

    @classmethod
    def load(cls, model: ModelRecipe, bundle: Bundle) -> Self:
        """Raises ModelError for a model that can't be loaded, has another tokenizer, or too small vectors."""
        from lightretriever.artifacts.pipeline.encoders import load_encoder  # needs torch

        settings = EncodeRecipe(lowercase=bundle.manifest.tokenizer.lowercase)
        encoder = load_encoder(model, settings, biencoder=is_of_sentence_transformers(model.path))
        leg = bundle.manifest.sparse
        own = leg.model is None and leg.impacts == "learned" and leg.vocabulary == "tokens"
        if encoder.has_sparse and own and encoder.tokenizer.sha256 != bundle.manifest.tokenizer.sha256:
            raise ModelError(
                f"The query model {encoder.name} has another tokenizer than the bundle, so its terms are others.",
                remedy=_OTHER_MODEL,
            )
        cut_vectors(np.empty((0, encoder.hidden_size), np.float32), bundle)
        return cls(encoder, bundle, encoder.has_sparse and own)

    def encode(self, texts: Sequence[str], task: str) -> list[QueryVectors]:
        """Queries behind the task's instruction. Dense vectors are cut to D values and normalised again. Sparse weights
        are max over positions of ln(1 + ReLU(h·P)), times IDF where the bundle's queries are weighted so."""
        encoded = self.encoder.encode_queries(texts, self.bundle.manifest.tasks[task].instruction)
        idf, sparse = self.bundle.idf(), (encoded.sparse if self.sparse else None) or [_NO_TERMS] * len(texts)
        return [
            QueryVectors(
                [f"{term}" for term in terms.tolist()], weights if idf is None else weights * idf[terms], vector
            )
            for vector, (terms, weights) in zip(cut_vectors(encoded.dense, self.bundle), sparse, strict=True)
        ]


def encode_fully(
    model: ModelRecipe, bundle: Bundle, task: str, queries: Sequence[str]
) -> tuple[FullQueries, list[str]]:
    """Encode `queries` by the whole `model`, see `QueryModel`. Also returns a warning where that is not the very model
    that encoded the bundle's documents. Raises ModelError."""
    texts, loaded = list(dict.fromkeys(queries)), QueryModel.load(model, bundle)
    vectors = dict(zip(texts, loaded.encode(texts, task), strict=True))
    ours, theirs = loaded.encoder.fingerprint, str(bundle.manifest.model.sha256)
    warning = (
        f"The query model ({ours[:12]}) is not the very one of the documents ({theirs[:12]}): other weights, "
        "adapter, first token or number type."
    )
    return FullQueries(vectors, loaded.sparse), [] if ours == theirs else [warning]


def by_likelihood(
    model: ModelRecipe, bundle: Bundle, index: ImpactIndex, queries: Mapping[str, str], run: Run
) -> dict[str, Ranking]:
    """The hits of a run ordered by log P(q | d), read by a language model as it was trained to (the LLM-QL paper, 7.4).

    Documents are read to 512 tokens. Raises ModelError for a model that can't be loaded.
    """
    import torch

    from lightretriever.artifacts.pipeline.language_model import Reading, log_likelihoods
    from lightretriever.artifacts.pipeline.model import adapter_settings, load_model

    trained, lowercase, ranked = model.trained_here, bundle.manifest.tokenizer.lowercase, dict[str, Ranking]()
    backbone = load_model(model, lowercase=lowercase)
    reading = Reading.of({} if trained is None else adapter_settings(trained))
    for name, hits in tracked(run.items(), "likelihood", total=len(run), unit="queries"):
        query, ids = backbone.tokenizer.encode(queries[name]).tolist(), [document for document, _ in hits]
        ordinals = np.array([index.ordinal(document) for document in ids], dtype=np.int64)
        texts = [text_of(json.loads(raw)) for raw in index.documents(ordinals)]
        read, scores = reading.document_ids(backbone, texts, _READ), list[float]()
        with torch.inference_mode():
            for start in range(0, len(read), _AT_ONCE):
                part = read[start : start + _AT_ONCE]
                scores += log_likelihoods(backbone, reading, part, [query] * len(part), _READ).tolist()
        pairs = zip(ids, scores, strict=True)
        ranked[name] = ranking(sorted(pairs, key=lambda pair: -pair[1]))
    return ranked


def cut_vectors(vectors: Float32Array, bundle: Bundle) -> list[Float32Array | None]:
    """The first D values (Matryoshka) of (n, H), normalised again: n of (D,) float32, None for a vector of zeros.
    Raises ModelError where H is smaller."""
    dimension = bundle.manifest.dimension
    if vectors.shape[1] < dimension:
        raise ModelError(
            f"The query model gives vectors of {vectors.shape[1]} values, the bundle's documents have {dimension}.",
            remedy=_OTHER_MODEL,
        )
    cut = np.asarray(vectors[:, :dimension], dtype=np.float32)
    lengths = np.linalg.norm(cut, axis=1)
    return [vector / length if length > 0 else None for vector, length in zip(cut, lengths, strict=True)]
