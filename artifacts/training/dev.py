"""Periodic evaluation while training: a sample of a development set, ranked by brute force."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int64Array
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.evaluation.runs import measure, ranking, read_judged
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.contrastive import QuerySide, corpus_scores
from lightretriever.artifacts.training.recipe import DevRecipe

_DEPTH = 100
_WEIGHTS = np.array([0.7, 0.3], np.float32)


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
        if not any(document.id in relevant for document in documents):
            raise CorpusError(
                f"dev.path is {recipe.path}, whose corpus has none of the documents that {recipe.split}.tsv judges "
                "relevant.",
                remedy="Give a corpus and qrels that belong together.",
            )
        others = [document.id for document in documents if document.id not in relevant]
        wanted = max(0, recipe.documents - len(relevant))
        kept = relevant | set(generator.sample(others, min(wanted, len(others))))
        return cls(
            recipe.instruction,
            {query: judged.queries[query] for query in chosen},
            qrels,
            [document for document in documents if document.id in kept],
        )


def evaluate_dev(backbone: Backbone, dev: DevSet, max_length: int, side: QuerySide) -> dict[str, float]:
    """nDCG@10 of dense, sparse and hybrid search with the model as it is now, ranked by brute force.

    Run it by `Engine.evaluate`, without gradients.
    """
    texts = (document.full_text for document in dev.documents)
    parts = list(corpus_scores(backbone, dev.instruction, dev.queries.values(), texts, max_length, side))
    return measured(dev, {leg: torch.cat([part[leg] for part in parts], dim=1).cpu().numpy() for leg in parts[0]})


def measured(dev: DevSet, legs: Mapping[str, Float32Array]) -> dict[str, float]:
    """nDCG@10 of each leg's scores (queries, documents), and of both legs together where there are two."""
    systems = [*legs, "hybrid"] if len(legs) == 2 else [*legs]
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {system: {} for system in systems}
    for number, name in enumerate(dev.queries):
        rankings = {leg: _best(scores[number]) for leg, scores in legs.items()}
        if "hybrid" in runs:
            rankings["hybrid"] = _hybrid(np.stack([legs["dense"][number], legs["sparse"][number]]))
        for system, (ordinals, scores) in rankings.items():
            hits = zip(ordinals[:_DEPTH].tolist(), scores.tolist(), strict=False)
            runs[system][name] = ranking([(dev.documents[ordinal].id, score) for ordinal, score in hits])
    return {system: measure(dev.qrels, run)["nDCG@10"] for system, run in runs.items()}


def _hybrid(legs: Float32Array) -> tuple[Int64Array, FloatArray]:
    """The ranking by the weighted sum of the scores of both legs, (2, N), each scaled to its range."""
    low, high = legs.min(axis=1, keepdims=True), legs.max(axis=1, keepdims=True)
    return _best(_WEIGHTS @ ((legs - low) / np.maximum(high - low, 1e-12)))


def _best(scores: Float32Array) -> tuple[Int64Array, FloatArray]:
    """Ordinals and scores of the best documents, best first."""
    order = np.argsort(-scores, kind="stable")[:_DEPTH].astype(np.int64)
    return order, scores[order]
