"""Queries encoded by a whole model, against the frozen documents of a bundle: what the token table is measured by.

The vectors are computed beforehand, and then take the way of all queries: same indexes, same fusion, same engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.workdir import scratch_folder
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.service.errors import FieldError, NoDirectionError, NoTokensError, shortened
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import EncodedQuery, QueryEncoder

__all__ = ["FullQueryEncoder", "QueryModel", "encode_fully"]


@dataclass(frozen=True)
class QueryModel:
    """A causal LM with its adapter, or a folder of sentence-transformers: the model that encoded the documents."""

    path: str
    adapter: str | None = None
    bos_token: str | None = None

    @property
    def is_biencoder(self) -> bool:
        """Whether it is a folder of sentence-transformers, which has no sparse side."""
        return (Path(self.path) / "modules.json").is_file()


class FullQueryEncoder(QueryEncoder):
    """Gives the queries it was made for the vectors of a whole model.

    A bi-encoder gives dense vectors alone; `full-hybrid` joins them with the bundle's own sparse queries.
    """

    def __init__(self, base: QueryEncoder, queries: Mapping[str, EncodedQuery], *, sparse: bool) -> None:
        super().__init__(base.tokenizer, base.tables)
        self._queries = queries
        self._sparse = sparse

    def gives(self, system: str) -> bool:
        """Whether `system` is one of the full model's."""
        return system in ({"full-dense", "full-hybrid"} | ({"full-sparse"} if self._sparse else set()))

    def encode(
        self,
        text: str,
        task: str,
        clock: StageClock,
        *,
        dense: bool = True,
        field: str = "query",
        further: Sequence[tuple[str, float]] = (),
    ) -> EncodedQuery:
        """The vectors computed for this text. NoDirectionError where the model gave it no vector but zero, and
        ValueError for further texts, for which there are none."""
        if further:
            raise ValueError("a model reads a query whole: there are no vectors for further texts")
        query = self._queries[text]
        if dense and query.dense is None:
            reason = "the query model's vector of this text is zero, so no document is nearer than another"
            raise NoDirectionError.of(FieldError(field, reason, shortened(text)))
        return query

    def with_parts(self, query: EncodedQuery, task: str) -> EncodedQuery:
        """The query as it is: a model's vector of a text is no sum over its tokens."""
        return query


def encode_fully(
    model: QueryModel, bundle: Bundle, task: str, queries: Sequence[str]
) -> tuple[FullQueryEncoder, list[str]]:
    """Encode `queries` by the whole `model`, in the task's instruction; also what is to be warned of.

    Dense vectors are cut to the bundle's D values and normalised again. Sparse weights are ln(1 + ReLU(h·P)) at their
    maximum over the query's positions, times IDF where the bundle's queries are weighted so. Raises ModelError for a
    model that can't be loaded, has another tokenizer, or is smaller than the bundle's dimension.
    """
    idf = bundle.idf()
    base = QueryEncoder(bundle.tokenizer(), {task: bundle.table(task)}, idf)
    texts = list(dict.fromkeys(queries))
    if model.is_biencoder:
        return _by_biencoder(model, bundle, base, task, texts)
    from lightretriever.artifacts.pipeline.full_query import full_query_vectors
    from lightretriever.artifacts.pipeline.model import load_backbone

    with scratch_folder(Path(gettempdir()), "query-model-") as work:
        backbone = load_backbone(
            model.path,
            work=work,
            adapter=model.adapter,
            bos_token=model.bos_token,
            lowercase=bundle.manifest.tokenizer.lowercase,
        )
        if backbone.tokenizer.sha256 != bundle.manifest.tokenizer.sha256:
            raise ModelError(
                f"The query model {backbone.name} has another tokenizer than the bundle, so its terms are others.",
                remedy="Give the model that encoded the documents.",
            )
        instruction = bundle.manifest.tasks[task].instruction
        with ProgressBar("query model", total=len(texts), unit="queries") as progress:
            vectors, sparse = full_query_vectors(backbone, instruction, texts, progress)
    encoded = {}
    for text, vector, (terms, weights) in zip(texts, _cut(vectors, bundle), sparse, strict=True):
        weighted = weights if idf is None else weights * idf[terms]
        encoded[text] = EncodedQuery.of_model(terms, weighted, vector)
    return FullQueryEncoder(base, encoded, sparse=True), _compared(backbone.fingerprint, bundle)


def _by_biencoder(
    model: QueryModel, bundle: Bundle, base: QueryEncoder, task: str, texts: list[str]
) -> tuple[FullQueryEncoder, list[str]]:
    from lightretriever.artifacts.pipeline.biencoder import load_biencoder

    encoder = load_biencoder(model.path, lowercase=bundle.manifest.tokenizer.lowercase)
    vectors = encoder.encode_queries(texts, bundle.manifest.tasks[task].instruction)
    encoded = {
        text: _with_own_tokens(base, task, text, vector)
        for text, vector in zip(texts, _cut(vectors, bundle), strict=True)
    }
    return FullQueryEncoder(base, encoded, sparse=False), _compared(encoder.fingerprint, bundle)


def _compared(fingerprint: str, bundle: Bundle) -> list[str]:
    """A warning where the query model is not the very one that encoded the bundle's documents."""
    theirs = str(bundle.manifest.model.sha256)
    if fingerprint == theirs:
        return []
    return [
        f"The query model ({fingerprint[:12]}) is not the very one of the documents ({theirs[:12]}): other weights, "
        "adapter, first token or number type."
    ]


def _with_own_tokens(base: QueryEncoder, task: str, text: str, vector: npt.NDArray[np.float32] | None) -> EncodedQuery:
    """The given dense vector, and the sparse query as the bundle makes it."""
    try:
        return replace(base.encode(text, task, StageClock(), dense=False), dense=vector)
    except NoTokensError:
        return EncodedQuery.of_model(np.empty(0, np.int32), np.empty(0, np.float32), vector)


def _cut(vectors: npt.NDArray[np.float32], bundle: Bundle) -> list[npt.NDArray[np.float32] | None]:
    """The first D values (Matryoshka) of (n, H), normalised again: n of (D,) float32, None for a vector of zeros."""
    dimension = bundle.manifest.dimension
    if vectors.shape[1] < dimension:
        raise ModelError(
            f"The query model gives vectors of {vectors.shape[1]} values, the bundle's documents have {dimension}.",
            remedy="Give the model that encoded the documents.",
        )
    cut = np.asarray(vectors[:, :dimension], dtype=np.float32)
    lengths = np.linalg.norm(cut, axis=1)
    return [vector / length if length > 0 else None for vector, length in zip(cut, lengths, strict=True)]
