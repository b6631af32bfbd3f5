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
from lightretriever.artifacts.pipeline.encode import encoded_shard
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.states import token_states
from lightretriever.artifacts.training.recipe import DevRecipe

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
) -> dict[str, float]:
    """nDCG@10 of dense, sparse and hybrid search with the model as it is now, ranked by brute force.

    `idf` and `row_weights`, both (V,) float32, are what tokens weigh in sparse and in dense queries; None is 1.
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
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {"dense": {}, "sparse": {}, "hybrid": {}}
    for name, query, vectors in zip(dev.queries, tokenised, rows, strict=True):
        scores_of = [_dense(shard, vectors), _sparse(shard, query, idf, backbone.vocab_size)]
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


def _best(scores: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Ordinals and scores of the best documents, best first."""
    order = np.argsort(-scores, kind="stable")[:_DEPTH].astype(np.int64)
    return order, scores[order]
