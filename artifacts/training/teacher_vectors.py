"""Teachers that score by vectors: every distinct query and document is encoded once, in resumable shards."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.pipeline.encode import QUANTIZATION, encoded_shard, write_shards
from lightretriever.artifacts.pipeline.encoder import Encoded
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import load_backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.sparse_head import ImpactRow
from lightretriever.artifacts.pipeline.weights import adapter_settings, local_folder
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.idf import IDF_FILE, load_idf
from lightretriever.artifacts.training.losses import ensemble
from lightretriever.artifacts.training.recipe import TeacherRecipe, TrainRecipe
from lightretriever.artifacts.training.types import TrainingSet
from scipy import sparse

__all__ = ["Pairs", "VectorTeacher", "load_teacher", "vector_scores"]

_SHARD: Final = 1024
_TERMS: Final = 128  # sparse terms kept of a query and of a document

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


@dataclass(frozen=True)
class VectorTeacher:
    """A model that makes vectors of queries, which have an instruction, and of documents; dense ones L2-normalised.

    `vocab_size` is that of its sparse vectors, 0 where it has none.
    """

    queries: Callable[[list[str], str], EncodedShard]
    documents: Callable[[list[str]], EncodedShard]
    vocab_size: int = 0


def load_teacher(teacher: TeacherRecipe, recipe: TrainRecipe) -> VectorTeacher:
    """Load the model of a teacher of kind `biencoder` or `lightretriever` on the recipe's device. Raises ModelError."""
    return _biencoder(teacher, recipe) if teacher.kind == "biencoder" else _lightretriever(teacher, recipe)


def _biencoder(teacher: TeacherRecipe, recipe: TrainRecipe) -> VectorTeacher:
    """A sentence-transformers model with its own prompts, pooling and lengths; it takes no instruction."""
    from lightretriever.artifacts.pipeline.biencoder import load_biencoder  # slow to import

    model = load_biencoder(str(teacher.path), device=recipe.model.device)
    return VectorTeacher(
        lambda texts, _: encoded_shard(_numbered(texts), model.encode_queries(texts)),
        lambda texts: encoded_shard(_numbered(texts), model.encode_documents(texts)),
    )


def _lightretriever(teacher: TeacherRecipe, recipe: TrainRecipe) -> VectorTeacher:
    """A model of our own, its queries by the full model; with the IDF weights that its adapter brings."""
    backbone = load_backbone(
        str(teacher.path),
        work=recipe.work / "teachers",
        adapter=teacher.adapter,
        bos_token=teacher.bos_token,
        device=recipe.model.device,
        lowercase=recipe.lowercase,
    )
    model = LanguageModel.of(backbone, EncodeRecipe(max_length=recipe.data.max_document_length, top_k=_TERMS))
    file = None
    if teacher.adapter is not None and adapter_settings(teacher.adapter).get("query_weights") != "count":
        file = local_folder(teacher.adapter) / IDF_FILE
    idf = load_idf(file, backbone.vocab_size) if file is not None and file.is_file() else None

    def queries(texts: list[str], instruction: str) -> EncodedShard:
        made = model.encode_queries(texts, instruction)
        weighted = [(terms, weights if idf is None else weights * idf[terms]) for terms, weights in made.sparse or []]
        return encoded_shard(
            _numbered(texts), Encoded(made.dense, [_largest(terms, weights) for terms, weights in weighted])
        )

    def documents(texts: list[str]) -> EncodedShard:
        return encoded_shard(_numbered(texts), model.encode_documents(texts))

    return VectorTeacher(queries, documents, backbone.vocab_size)


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
    shards = list(queries)
    vectors = np.concatenate([shard.dense for shard in shards])
    terms = sparse.vstack([_matrix(shard, teacher.vocab_size) for shard in shards], format="csr")
    flat = pairs.document.ravel()
    order = np.argsort(flat, kind="stable")
    scores = np.full((2, flat.size), np.nan, dtype=np.float32)
    for number, shard in enumerate(documents):
        start, end = np.searchsorted(flat, (number * _SHARD, (number + 1) * _SHARD), sorter=order)
        places = order[start:end]
        rows, columns = pairs.query[places // pairs.document.shape[1]], flat[places] - number * _SHARD
        scores[0, places] = np.einsum("ij,ij->i", vectors[rows], shard.dense[columns], dtype=np.float32)
        if teacher.vocab_size:
            scores[1, places] = (terms[rows] * _matrix(shard, teacher.vocab_size)[columns]).sum(axis=1)
    both = scores.reshape(2, *pairs.document.shape)
    return ensemble(torch.from_numpy(both), torch.ones(2), 1.0).numpy() if teacher.vocab_size else both[0]


def _encode(store: ShardStore, texts: list[str], encode: Callable[[list[str]], EncodedShard], unit: str) -> None:
    """Write the shards that are not there yet."""
    with ProgressBar(f"teacher {store.path.parent.name}", total=len(texts), unit=unit) as progress:

        def encode_part(_: int, part: list[str]) -> EncodedShard:
            shard = encode(part)
            progress.advance(len(part))
            return shard

        write_shards(store, texts, _SHARD, encode_part, progress)


def _matrix(shard: EncodedShard, vocab_size: int) -> sparse.csr_array:
    """The sparse vectors of a shard, (n, V) float32."""
    arrays = (shard.impacts.astype(np.float32), shard.terms, shard.indptr)
    return sparse.csr_array(arrays, shape=(len(shard.ids), vocab_size))


def _largest(terms: npt.NDArray[np.int32], weights: Floats) -> ImpactRow:
    """The terms of the largest weights, ascending, and their impacts."""
    kept = np.sort(np.argsort(-weights, kind="stable")[:_TERMS])
    return terms[kept], np.clip(np.rint(weights[kept] * QUANTIZATION), 0, 65_535).astype(np.uint16)


def _numbered(texts: list[str]) -> list[str]:
    return [str(number) for number in range(len(texts))]
