"""Teachers that score by vectors: every distinct query and document is encoded once, in resumable shards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.corpus.beir import Document
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.pipeline.encode import EncodeSettings, encode_documents
from lightretriever.artifacts.pipeline.full_query import full_query_vectors
from lightretriever.artifacts.pipeline.model import load_backbone
from lightretriever.artifacts.pipeline.weights import adapter_settings, local_folder
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.idf import IDF_FILE, load_idf
from lightretriever.artifacts.training.distillation import ensemble
from lightretriever.artifacts.training.recipe import TeacherRecipe, TrainRecipe
from lightretriever.artifacts.training.types import TrainingSet

__all__ = ["Pairs", "VectorTeacher", "load_teacher", "vector_scores"]

_SHARD: Final = 1024
_TERMS: Final = 128  # sparse terms kept of a query and of a document
_QUANTIZATION: Final = 100

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pairs:
    """The pairs of a set with n examples that are to be scored.

    `queries` and `documents` are the distinct texts; example i has the query `query[i]` and the documents
    `document[i]` (C,), the positive first, -1 where it has fewer negatives than others.
    """

    queries: list[str]
    documents: list[str]
    query: npt.NDArray[np.int64]
    document: npt.NDArray[np.int64]

    @classmethod
    def of(cls, one: TrainingSet) -> "Pairs":
        """The pairs of all examples of a set; a document that several examples have comes once."""
        queries: dict[str, int] = {}
        names: dict[str, int] = {}
        width = 1 + max((len(example.negatives) for example in one.examples), default=0)
        query = np.empty(len(one.examples), dtype=np.int64)
        document = np.full((len(one.examples), width), -1, dtype=np.int64)
        for row, example in enumerate(one.examples):
            query[row] = queries.setdefault(example.query, len(queries))
            for column, name in enumerate((example.positive, *example.negatives)):
                document[row, column] = names.setdefault(name, len(names))
        return cls(list(queries), [one.documents[name] for name in names], query, document)


class VectorTeacher(Protocol):
    """A model that makes vectors of texts. `vocab_size` is that of its sparse vectors, 0 where it has none."""

    vocab_size: int

    def queries(self, texts: list[str], instruction: str) -> EncodedShard:
        """Vectors of queries, dense ones L2-normalised."""
        ...

    def documents(self, texts: list[str]) -> EncodedShard:
        """Vectors of documents, dense ones L2-normalised."""
        ...


class _BiencoderTeacher:
    """A sentence-transformers model with the prompts, pooling and lengths of its own; instructions are left out."""

    vocab_size = 0

    def __init__(self, teacher: TeacherRecipe, recipe: TrainRecipe) -> None:
        from lightretriever.artifacts.pipeline.biencoder import (
            load_biencoder,  # slow to import, and only this teacher needs it
        )

        self._model = load_biencoder(str(teacher.path), device=recipe.model.device)

    def queries(self, texts: list[str], instruction: str) -> EncodedShard:
        return _shard(self._model.encode_queries(texts), [])

    def documents(self, texts: list[str]) -> EncodedShard:
        return _shard(self._model.encode_documents(texts), [])


class _LightRetrieverTeacher:
    """A model of our own, its queries by the full model; with the IDF weights that its adapter brings."""

    def __init__(self, teacher: TeacherRecipe, recipe: TrainRecipe, work: Path) -> None:
        self._backbone = load_backbone(
            str(teacher.path),
            work=work,
            adapter=teacher.adapter,
            bos_token=teacher.bos_token,
            device=recipe.model.device,
            lowercase=recipe.lowercase,
        )
        self.vocab_size = self._backbone.vocab_size
        self._settings = EncodeSettings(recipe.data.max_document_length, _TERMS, _QUANTIZATION)
        self._idf = None
        if teacher.adapter is not None and adapter_settings(teacher.adapter).get("query_weights") != "count":
            file = local_folder(teacher.adapter) / IDF_FILE
            self._idf = load_idf(file, self.vocab_size) if file.is_file() else None

    def queries(self, texts: list[str], instruction: str) -> EncodedShard:
        dense, rows = full_query_vectors(self._backbone, instruction, texts)
        if self._idf is not None:
            rows = [(terms, weights * self._idf[terms]) for terms, weights in rows]
        return _shard(dense, [_largest(terms, weights) for terms, weights in rows])

    def documents(self, texts: list[str]) -> EncodedShard:
        documents = [Document(str(number), "", text, b"") for number, text in enumerate(texts)]
        with torch.inference_mode():
            return encode_documents(self._backbone, documents, self._settings)


def load_teacher(teacher: TeacherRecipe, recipe: TrainRecipe) -> VectorTeacher:
    """Load the model of a teacher of kind `biencoder` or `lightretriever` on the recipe's device. Raises ModelError."""
    if teacher.kind == "biencoder":
        return _BiencoderTeacher(teacher, recipe)
    return _LightRetrieverTeacher(teacher, recipe, recipe.work / "teachers")


def vector_scores(
    load: Callable[[], VectorTeacher], pairs: Pairs, instruction: str, work: Path, plan: dict[str, Any]
) -> Floats:
    """A score for every pair, (n, C) float32, NaN where there is no document.

    Dense scores are cosines. A teacher with sparse vectors as well scores by (ŝ_dense + ŝ_sparse) / 2, each min-max
    normalised over the example's own documents. Vectors lie in shards below `work`, guarded by `plan`.
    """
    queries, documents = (ShardStore.begin(work / part, plan) for part in ("queries", "documents"))
    teacher = load()
    _encode(queries, pairs.queries, lambda texts: teacher.queries(texts, instruction), "queries")
    _encode(documents, pairs.documents, teacher.documents, "documents")
    asked = _joined(list(queries))
    flat = pairs.document.ravel()
    order = np.argsort(flat, kind="stable")
    dense = np.full(flat.shape, np.nan, dtype=np.float32)
    sparse = dense.copy()
    for number, shard in enumerate(documents):
        start, end = np.searchsorted(flat, (number * _SHARD, (number + 1) * _SHARD), sorter=order)
        places = order[start:end]
        rows, columns = pairs.query[places // pairs.document.shape[1]], flat[places] - number * _SHARD
        dense[places] = np.einsum("ij,ij->i", asked.dense[rows], shard.dense[columns], dtype=np.float32)
        if teacher.vocab_size:
            sparse[places] = _products(asked, shard, rows, columns, teacher.vocab_size)
    shape = pairs.document.shape
    if not teacher.vocab_size:
        return dense.reshape(shape)
    both = torch.from_numpy(np.stack([dense, sparse]).reshape(2, *shape))
    return ensemble(both, torch.ones(2), 1.0).numpy()


def _encode(store: ShardStore, texts: list[str], encode: Callable[[list[str]], EncodedShard], unit: str) -> None:
    """Write the shards that are not there yet."""
    starts = range(0, len(texts), _SHARD)
    with ProgressBar(f"teacher {store.path.parent.name}", total=len(texts), unit=unit) as progress:
        for number, start in enumerate(starts):
            part = texts[start : start + _SHARD]
            if store.has(number):
                progress.skip(len(part))
                continue
            store.write(number, encode(part))
            progress.advance(len(part))
    store.finish(len(starts))


def _products(
    queries: EncodedShard,
    documents: EncodedShard,
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    vocab_size: int,
) -> Floats:
    """Inner products of sparse vectors, that of query `rows[i]` with that of document `columns[i]`, (m,)."""
    scores = np.empty(len(rows), dtype=np.float32)
    weights = np.zeros(vocab_size, dtype=np.float32)  # one query at a time, spread out
    for place, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        asked = slice(queries.indptr[row], queries.indptr[row + 1])
        found = slice(documents.indptr[column], documents.indptr[column + 1])
        weights[queries.terms[asked]] = queries.impacts[asked]
        scores[place] = weights[documents.terms[found]] @ documents.impacts[found].astype(np.float32)
        weights[queries.terms[asked]] = 0
    return scores


def _largest(terms: npt.NDArray[np.int32], weights: Floats) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
    """The terms of the largest weights, ascending, and their impacts."""
    kept = np.sort(np.argsort(-weights, kind="stable")[:_TERMS])
    return terms[kept], np.clip(np.rint(weights[kept] * _QUANTIZATION), 0, 65_535).astype(np.uint16)


def _shard(dense: Floats, rows: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]]) -> EncodedShard:
    """Vectors as a shard; without `rows` there are no sparse ones."""
    count = len(dense)
    lengths = [len(terms) for terms, _ in rows] or [0] * count
    terms = np.concatenate([np.empty(0, np.int32), *(terms for terms, _ in rows)])
    impacts = np.concatenate([np.empty(0, np.uint16), *(impacts for _, impacts in rows)])
    indptr = np.cumsum([0, *lengths]).astype(np.int64)
    return EncodedShard([str(number) for number in range(count)], dense.astype(np.float16), indptr, terms, impacts)


def _joined(shards: Sequence[EncodedShard]) -> EncodedShard:
    starts = np.cumsum([0, *(shard.indptr[-1] for shard in shards)])
    return EncodedShard(
        [name for shard in shards for name in shard.ids],
        np.concatenate([shard.dense for shard in shards]),
        np.concatenate([[0], *(shard.indptr[1:] + start for shard, start in zip(shards, starts, strict=False))]),
        np.concatenate([shard.terms for shard in shards]),
        np.concatenate([shard.impacts for shard in shards]),
    )
