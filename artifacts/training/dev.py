"""Periodic evaluation while training: a sample of a development set, ranked by brute force."""

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts import kernels
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.evaluation.runs import measure, ranking, read_judged
from lightretriever.artifacts.files.shards import EncodedShard
from lightretriever.artifacts.pipeline.encode import QUANTIZATION, encoded_shard
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.states import token_states
from lightretriever.artifacts.training.losses import bm25_scores
from lightretriever.artifacts.training.recipe import DevRecipe
from lightretriever.artifacts.training.types import SPARSE_SPACE

__all__ = ["DevSet", "evaluate_dev"]

_DEPTH = 100
_TOP_K = 128  # as an index would cut; an untrained model gives every document most of the vocabulary
_WEIGHTS = (0.7, 0.3)
_ROW_BLOCKS = 96


@dataclass(frozen=True)
class DevSet:
    """Queries, judgments and a sample of the documents that holds every relevant one."""

    instruction: str
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    documents: list[Document]

    @classmethod
    def load(cls, recipe: DevRecipe, seed: int) -> "DevSet":
        """Read the set and draw the sample. Raises CorpusError."""
        judged = read_judged(recipe.path, recipe.split)
        generator = random.Random(seed)
        chosen = sorted(generator.sample(sorted(judged.queries), min(recipe.queries, len(judged.queries))))
        qrels = {query: judged.qrels[query] for query in chosen}
        relevant = {document for grades in qrels.values() for document, grade in grades.items() if grade > 0}
        documents = list(Corpus(recipe.path, skip_bad=True))
        others = [document.id for document in documents if document.id not in relevant]
        wanted = max(0, recipe.documents - len(relevant))
        kept = relevant | set(generator.sample(others, min(wanted, len(others))))
        return cls(
            recipe.instruction,
            {query: judged.queries[query] for query in chosen},
            qrels,
            [document for document in documents if document.id in kept],
        )


def evaluate_dev(
    backbone: Backbone,
    dev: DevSet,
    max_length: int,
    idf: npt.NDArray[np.float32] | None,
    row_weights: npt.NDArray[np.float32] | None,
    bm25: tuple[float, float] | None = None,
) -> dict[str, float]:
    """nDCG@10 of dense, sparse and hybrid search with the model as it is now, ranked by brute force.

    `idf` and `row_weights`, both (V,) float32, are what tokens weigh in sparse and in dense queries; None is 1. With
    `bm25`, a factor and the mean length of documents, sparse scores are added to so much BM25 over the same tokens, and
    `bm25` is nDCG@10 of BM25 alone.
    """
    encoder = LanguageModel.of(backbone, EncodeRecipe(max_length=max_length, top_k=_TOP_K))
    made = encoder.encode_documents([document.full_text for document in dev.documents])
    shard = encoded_shard([document.id for document in dev.documents], made)
    with torch.inference_mode():
        tokenised = backbone.tokenizer.encode_batch(list(dev.queries.values()))
        tokens, places = np.unique(np.concatenate(tokenised), return_inverse=True)
        prefix = instruction_prefix(backbone, dev.instruction)
        states = token_states(backbone, prefix, torch.from_numpy(tokens).long(), _ROW_BLOCKS)
    table = states.float().cpu().numpy()
    if row_weights is not None:
        table = table * row_weights[tokens][:, None]
    rows = np.split(table[places], np.cumsum([len(one) for one in tokenised])[:-1])
    systems = ["dense", "sparse", "hybrid", *(["bm25"] if bm25 else [])]
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {system: {} for system in systems}
    spaced = backbone.tokenizer.encode_batch([SPARSE_SPACE + query for query in dev.queries.values()])
    plain = None if bm25 is None else _bm25(backbone, dev, spaced, idf, max_length, bm25[1])
    for number, (name, query, vectors) in enumerate(zip(dev.queries, spaced, rows, strict=True)):
        sparse = _sparse(shard, query, idf, backbone.vocab_size)
        if plain is not None and bm25 is not None:
            sparse = sparse + QUANTIZATION * bm25[0] * plain[number]
        scores_of = [_dense(shard, vectors), sparse]
        legs = [_best(scores) for scores in scores_of]
        candidates, _, ranks = kernels.align(legs)
        # The service, too, gives each leg's candidates the other leg's true score.
        known = np.stack([scores[candidates] for scores in scores_of]).astype(np.float64)
        order, _, fused = kernels.fuse(known, ranks, _WEIGHTS, "range", 0.0)
        orders: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]] = {
            "dense": legs[0],
            "sparse": legs[1],
            "hybrid": (candidates[order], fused[order]),
        }
        if plain is not None:
            orders["bm25"] = _best(plain[number])
        for system, (ordinals, scores) in orders.items():
            hits = [(shard.ids[ordinal], float(score)) for ordinal, score in zip(ordinals, scores, strict=True)]
            runs[system][name] = ranking(hits[:_DEPTH])
    return {system: measure(dev.qrels, run)["nDCG@10"] for system, run in runs.items()}


def _dense(shard: EncodedShard, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Cosine of the mean of `vectors` (n, H) with every document, (N,)."""
    mean = vectors.mean(axis=0)
    scores: npt.NDArray[np.float32] = shard.dense.astype(np.float32) @ (mean / np.linalg.norm(mean))
    return scores


def _sparse(
    shard: EncodedShard, query: npt.NDArray[np.int32], idf: npt.NDArray[np.float32] | None, vocab_size: int
) -> npt.NDArray[np.float32]:
    """Σ_t count(t) · IDF_t · impact(t) for every document, (N,)."""
    weights = np.bincount(query, minlength=vocab_size).astype(np.float32)
    if idf is not None:
        weights *= idf
    sums = np.concatenate([[0.0], np.cumsum(weights[shard.terms] * shard.impacts, dtype=np.float64)])
    scores: npt.NDArray[np.float32] = (sums[shard.indptr[1:]] - sums[shard.indptr[:-1]]).astype(np.float32)
    return scores


def _bm25(
    backbone: Backbone,
    dev: DevSet,
    queries: list[npt.NDArray[np.int32]],
    idf: npt.NDArray[np.float32] | None,
    max_length: int,
    average: float,
) -> npt.NDArray[np.float32]:
    """BM25 of every query with every document over the model's tokens, (queries, N)."""
    framed = backbone.document_ids([document.full_text for document in dev.documents], max_length)
    documents = [ids[len(backbone.prefix()) : -1] for ids in framed]
    weights = np.ones(backbone.vocab_size, dtype=np.float32) if idf is None else idf
    ids = [torch.from_numpy(query).long() for query in queries]
    scores: npt.NDArray[np.float32] = bm25_scores(ids, documents, torch.from_numpy(weights), average).numpy()
    return scores


def _best(scores: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Ordinals and scores of the best documents, best first."""
    order = np.argsort(-scores, kind="stable")[:_DEPTH].astype(np.int64)
    return order, scores[order]
