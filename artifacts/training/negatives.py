"""The consistency filter and hard negatives: what a first ranking says of the training pairs.

A ranking is BM25 over the set's own documents, or a bundle made from the same corpus, such as one of an earlier
checkpoint, searched by the engine that serves it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.searching import OpenSearcher
from lightretriever.artifacts.evaluation.systems import word_index
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.training.recipe import ConsistencyRecipe, NegativesRecipe
from lightretriever.artifacts.training.types import Example, same_text

__all__ = ["SCRATCH", "Source", "bundle_of", "filter_and_mine", "pick_negatives"]

Hits = list[tuple[str, float]]
Search = Callable[[str, int], Hits]

SCRATCH: Final = "bm25-"
"""How the name of BM25's folder begins. A run that is killed leaves it."""

_AT_ONCE: Final = 2048  # queries whose hits may wait
_THREADS: Final = min(8, os.cpu_count() or 1)
_LEAST_CANDIDATES: Final = 100


@dataclass(frozen=True)
class Source:
    """A set while it is prepared: its documents by id, and per query (as `same_text` spells it) all relevant ones."""

    name: str
    instruction: str
    documents: Mapping[str, str]
    relevant: Mapping[str, set[str]]


def filter_and_mine(
    examples: Sequence[Example],
    source: Source,
    consistency: ConsistencyRecipe | None,
    negatives: Sequence[NegativesRecipe],
    work: Path,
    open_searcher: OpenSearcher,
) -> list[Example]:
    """The examples that pass the filter, with their hard negatives: those of each of `negatives` in turn, each once.

    Every ranking is asked once per query, whatever it is used for. BM25 indexes the documents in a folder below
    `work` that is removed again. Raises RecipeError or BundleError for a bundle that can't be used.
    """
    kept = {example.row: example for example in examples}
    found: dict[int, dict[int, list[str]]] = {row: {} for row in kept}
    rankings = [] if consistency is None else [consistency.ranking]
    for ranking in dict.fromkeys([*rankings, *(one.ranking for one in negatives)]):
        check = consistency if consistency is not None and consistency.ranking == ranking else None
        wanted = {number: one for number, one in enumerate(negatives) if one.ranking == ranking}
        depth = max([check.top if check else 1, *(one.depth for one in wanted.values())])
        waiting: dict[str, list[Example]] = {}
        for example in kept.values():
            waiting.setdefault(example.query, []).append(example)
        positives = {example.positive for example in kept.values()}
        with _opened(ranking, source, work, open_searcher, positives) as search:
            stage = f"{source.name}: {'BM25' if ranking == 'bm25' else ranking}"
            for query, hits in _ranked(search, list(waiting), depth, stage):
                for example in waiting[query]:
                    if check and example.positive not in [name for name, _ in hits[: check.top]]:
                        del kept[example.row]
                        continue
                    for number, one in wanted.items():
                        found[example.row][number] = pick_negatives(hits, example, source, one)
    return [replace(example, negatives=_merged(found[row])) for row, example in kept.items()]


def pick_negatives(hits: Hits, example: Example, source: Source, settings: NegativesRecipe) -> list[str]:
    """Ids of hard negatives among `hits`, which are ids and scores, best first.

    Never one of the query's relevant documents or one with the text of such a document, never two with the same text,
    and none that scores above the positive's score s⁺ less (1 - margin)·|s⁺|, which is margin·s⁺ for a positive score.
    None at all where the positive is not among the hits: then the ranking can't say how much is too much.
    """
    hits = hits[: settings.depth]
    score = dict(hits).get(example.positive)
    if score is None:
        return []
    bound = score - (1 - settings.margin) * abs(score)
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


def bundle_of(ranking: Path, name: str) -> Path:
    """The bundle for the set `name`: `ranking` itself, or the folder of that name in it."""
    return ranking if (ranking / MANIFEST_FILE).is_file() else ranking / name


def _merged(found: Mapping[int, list[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for number in sorted(found) for name in found[number]))


def _ranked(search: Search, queries: Sequence[str], depth: int, stage: str) -> Iterator[tuple[str, Hits]]:
    """Each query with its hits, in the given order. Java and Faiss release the GIL, so threads do help."""
    with ThreadPoolExecutor(_THREADS) as pool, ProgressBar(stage, total=len(queries), unit="queries") as progress:
        for start in range(0, len(queries), _AT_ONCE):
            part = queries[start : start + _AT_ONCE]
            for query, hits in zip(part, pool.map(lambda text: search(text, depth), part), strict=True):
                yield query, hits
                progress.advance(1)


@contextmanager
def _opened(
    ranking: Literal["bm25"] | Path, source: Source, work: Path, open_searcher: OpenSearcher, positives: set[str]
) -> Iterator[Search]:
    if isinstance(ranking, Path):
        with _bundle_search(bundle_of(ranking, source.name), source, open_searcher, positives) as search:
            yield search
    else:
        with word_index(work, SCRATCH, source.documents, source.documents.values(), f"{source.name}: BM25") as words:
            yield words.search


@contextmanager
def _bundle_search(path: Path, source: Source, open_searcher: OpenSearcher, positives: set[str]) -> Iterator[Search]:
    """Both legs of the bundle, ranked as it is served; the score of a hit is its cosine.

    A fused score is relative to the query's other candidates, so a margin on it would have no fixed meaning.
    """
    bundle = Bundle.open(path)
    with bundle.sparse() as index:
        missing = sorted(positives - set(index.ids()))
    if missing:
        raise RecipeError(
            f"{path}: {len(missing)} relevant documents of the set {source.name} are not in this bundle, such as "
            f"{', '.join(missing[:3])}.",
            remedy="Give a bundle of the same corpus, or a folder with one bundle per set, each called like its set.",
        )
    tasks = bundle.manifest.tasks
    same = [task for task, info in tasks.items() if info.instruction == source.instruction]
    task = same[0] if same else bundle.manifest.default_task
    with open_searcher(bundle) as searcher:

        def search(query: str, depth: int) -> Hits:
            candidates = max(depth, _LEAST_CANDIDATES)
            hits = searcher.search(query, task=task, mode="hybrid", k=depth, candidates=candidates, fusion=None)
            # A query that can't be encoded has no ranking.
            return [(hit.id, hit.dense) for hit in hits or [] if hit.dense is not None and hit.id in source.documents]

        yield search
