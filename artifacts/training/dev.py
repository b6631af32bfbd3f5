"""Ranking by brute force with the model as it is: scores of a development set, and hits that become negatives."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.evaluation.runs import measure, ranking, read_judged
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.data import Hits
from lightretriever.artifacts.training.mixture import TrainingSet
from lightretriever.artifacts.training.objectives import QuerySide, corpus_scores
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe, DevRecipe

_DEPTH = 100
_DENSE = 0.7  # weight of the dense leg


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
    """nDCG@10 of each leg's scores (queries, documents), and of both legs together where there are two: of the
    weighted sum of their scores, each scaled to its range per query."""
    systems, found = dict(legs), dict[str, float]()
    if len(legs) == 2:
        systems["hybrid"] = _DENSE * _scaled(legs["dense"]) + (1 - _DENSE) * _scaled(legs["sparse"])
    for system, scores in systems.items():
        order = np.argsort(-scores, axis=1, kind="stable")[:, :_DEPTH]
        rows = zip(dev.queries, order.tolist(), np.take_along_axis(scores, order, axis=1).tolist(), strict=True)
        run = {
            name: ranking([(dev.documents[place].id, score) for place, score in zip(places, best, strict=True)])
            for name, places, best in rows
        }
        found[system] = measure(dev.qrels, run)["nDCG@10"]
    return found


def _scaled(scores: Float32Array) -> Float32Array:
    low, high = scores.min(axis=1, keepdims=True), scores.max(axis=1, keepdims=True)
    scaled: Float32Array = (scores - low) / np.maximum(high - low, 1e-12)
    return scaled


def ranked(
    backbone: Backbone, dataset: TrainingSet, stage: ContrastiveStage, data: DataRecipe, side: QuerySide
) -> dict[str, Hits]:
    """The best `depth` documents of a set for each query of its examples, by the leg that the stage mines with.

    Run it by `Engine.evaluate`, without gradients. Queries have the set's first instruction.
    """
    names = list(dataset.documents)
    queries = list(dict.fromkeys(example.query for example in dataset.examples))
    depth = data.negatives.depth if data.negatives else 1
    texts, length = dataset.documents.values(), data.max_document_length
    best, places = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    start = 0
    for part in corpus_scores(backbone, dataset.instructions[0], queries, texts, length, side):
        scores = part[stage.mine or "sparse"].cpu()
        numbers = torch.arange(start, start + scores.shape[1]).expand(len(queries), -1)
        start += scores.shape[1]
        scores, numbers = torch.cat([best, scores], dim=1), torch.cat([places, numbers], dim=1)
        best, order = scores.topk(min(depth, scores.shape[1]), dim=1)
        places = numbers.gather(1, order)
    rows = zip(queries, places.tolist(), best.tolist(), strict=True)
    return {query: [(names[n], score) for n, score in zip(own, scores, strict=True)] for query, own, scores in rows}
