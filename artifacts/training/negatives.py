"""The consistency filter and hard negatives: what BM25 over the set's own documents says of the training pairs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lightretriever.artifacts.evaluation.systems import word_index
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.sparse.bm25 import WordIndex
from lightretriever.artifacts.training.recipe import ConsistencyRecipe, NegativesRecipe
from lightretriever.artifacts.training.types import Example, same_text

__all__ = ["SCRATCH", "Source", "filter_and_mine", "pick_negatives"]

Hits = list[tuple[str, float]]

SCRATCH: Final = "bm25-"
"""How the name of BM25's folder begins. A run that is killed leaves it."""

_AT_ONCE: Final = 2048  # queries whose hits may wait
_THREADS: Final = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Source:
    """A set while it is prepared: its documents by id, and per query (as `same_text` spells it) all relevant ones."""

    name: str
    documents: Mapping[str, str]
    relevant: Mapping[str, set[str]]


def filter_and_mine(
    examples: Sequence[Example],
    source: Source,
    consistency: ConsistencyRecipe | None,
    negatives: NegativesRecipe | None,
    work: Path,
) -> list[Example]:
    """The examples that pass the filter, with their hard negatives.

    BM25 is asked once per query. It indexes the documents in a folder below `work` that is removed again.
    """
    if consistency is None and negatives is None:
        return list(examples)
    depth = max(consistency.top if consistency else 1, negatives.depth if negatives else 1)
    waiting: dict[str, list[Example]] = {}
    for example in examples:
        waiting.setdefault(example.query, []).append(example)
    kept: dict[int, Example] = {}
    title = f"{source.name}: BM25"
    with word_index(work, SCRATCH, source.documents, source.documents.values(), title) as words:
        for query, hits in _ranked(words, list(waiting), depth, title):
            for example in waiting[query]:
                if consistency and example.positive not in [name for name, _ in hits[: consistency.top]]:
                    continue
                found = pick_negatives(hits, example, source, negatives) if negatives else []
                kept[example.row] = replace(example, negatives=tuple(found))
    return [kept[example.row] for example in examples if example.row in kept]


def pick_negatives(hits: Hits, example: Example, source: Source, settings: NegativesRecipe) -> list[str]:
    """Ids of hard negatives among `hits`, which are ids and scores, best first.

    Never one of the query's relevant documents or one with the text of such a document, never two with the same text,
    and none that scores above `margin` times the positive's score. None at all where the positive is not among the
    hits: then the ranking can't say how much is too much.
    """
    hits = hits[: settings.depth]
    score = dict(hits).get(example.positive)
    if score is None:
        return []
    bound = settings.margin * score
    relevant = source.relevant[same_text(example.query)]
    texts = {same_text(source.documents[name]) for name in relevant}
    picked: list[str] = []
    for name, other in hits:
        if name in relevant or other > bound or len(picked) == settings.count:
            continue
        text = same_text(source.documents[name])
        if text not in texts:
            texts.add(text)
            picked.append(name)
    return picked


def _ranked(words: WordIndex, queries: Sequence[str], depth: int, stage: str) -> Iterator[tuple[str, Hits]]:
    """Each query with its hits, in the given order. Java releases the GIL, so threads do help."""
    with ThreadPoolExecutor(_THREADS) as pool, ProgressBar(stage, total=len(queries), unit="queries") as progress:
        for start in range(0, len(queries), _AT_ONCE):
            part = queries[start : start + _AT_ONCE]
            for query, hits in zip(part, pool.map(lambda text: words.search(text, depth), part), strict=True):
                yield query, hits
                progress.advance(1)
