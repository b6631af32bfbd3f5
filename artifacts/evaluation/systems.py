"""The systems that are compared, run over the judged queries of a dataset by the engine that serves."""

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import numpy as np

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.bm25 import BM25_B, BM25_K1, WordIndex, build_word_index
from lightretriever.artifacts.evaluation.full import FullQueries
from lightretriever.artifacts.evaluation.runs import JudgedQueries, Ranking, ranking
from lightretriever.artifacts.evaluation.searching import Fusion, Searcher, SearchMode
from lightretriever.artifacts.progress import ProgressBar, tracked
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.tokens.tokenizer import text_of

DEPTH: Final = 100
"""Hits of a query that are kept, where nothing else is asked for."""

PAPER_FUSION: Final = Fusion(LegWeights(dense=0.7, sparse=0.3), normalization="paper")
BM25: Final = {"k1": BM25_K1, "b": BM25_B}
LIKELIHOOD: Final = "hybrid-likelihood"
SYSTEMS: Final = (
    *("dense", "sparse", "hybrid", "hybrid-paper", LIKELIHOOD, "full-dense", "full-sparse", "full-hybrid", "bm25"),
)
"""In the order of the report. The `full-` ones encode the query by a whole model instead of the token table, and
LIKELIHOOD has the hits of `hybrid`, ordered by that model's log P(q | d)."""

ON_REQUEST: Final = ("hybrid-paper", LIKELIHOOD)
"""Those that are run only where they are named."""

_CHUNK: Final = 1024


@dataclass(frozen=True)
class Searches:
    """How every query is searched, and by which of `SYSTEMS` (None: all that can be run but `ON_REQUEST`). Without
    `dense`, the bundle has no dense leg, and the sparse one is its only search. Each leg proposes `depth` candidates,
    and as many hits are kept."""

    task: str
    fusion: Fusion
    only: Collection[str] | None = None
    full: FullQueries | None = None
    dense: bool = True
    depth: int = DEPTH

    def wanted(self) -> list[str]:
        """The systems to run, in order. Raises RecipeError for one that is unknown, or needs a query model."""
        possible = [name for name in SYSTEMS if not name.startswith("full-") or (self.full and self.full.gives(name))]
        if not (self.full and self.full.sparse):
            possible.remove(LIKELIHOOD)
        if not self.dense:
            possible = [name for name in possible if name in ("sparse", "full-sparse", "bm25")]
        if self.only is None:
            return [name for name in possible if name not in ON_REQUEST]
        impossible = sorted(set(self.only) - set(possible))
        if impossible:
            raise RecipeError(
                f"{', '.join(impossible)}: no system that can be run here.",
                remedy=f"Use some of {', '.join(possible)}; the full- ones need --query-model, and dense and hybrid a "
                "dense leg.",
            )
        return [name for name in possible if name in self.only]


def run_systems(
    light: Searcher, judged: JudgedQueries, searches: Searches
) -> tuple[dict[str, dict[str, Ranking]], dict[str, list[str]]]:
    """Search with every judged query by the systems of the bundle; `light` encodes it without a model.

    Returns by system its run, and the queries that it had to leave unanswered.
    """
    runs, unanswered = dict[str, dict[str, Ranking]](), dict[str, list[str]]()
    depth = searches.depth
    wanted = [system for system in searches.wanted() if system not in ("bm25", LIKELIHOOD)]
    if LIKELIHOOD in searches.wanted() and "hybrid" not in wanted:
        wanted.append("hybrid")
    whole = light if searches.full is None else searches.full.searcher(light, searches.task)
    with ProgressBar("evaluate", total=len(judged.queries) * len(wanted), unit="queries") as progress:
        for system in wanted:
            searcher = whole if system.startswith("full-") else light
            run = runs[system] = {}
            mode = cast(SearchMode, system.removeprefix("full-").removesuffix("-paper"))
            fusion = PAPER_FUSION if system == "hybrid-paper" else searches.fusion
            for query_id, text in judged.queries.items():
                hits = searcher.search(text, task=searches.task, mode=mode, k=depth, candidates=depth, fusion=fusion)
                if hits is None:
                    unanswered.setdefault(system, []).append(query_id)
                else:
                    run[query_id] = ranking(hits)
                progress.advance(1)
    return runs, unanswered


@contextmanager
def word_index(
    parent: Path, prefix: str, ids: Collection[str], texts: Iterable[str], stage: str
) -> Iterator[WordIndex]:
    """A BM25 index of `texts`, named by `ids`, in a new folder below `parent` that is removed after the block."""
    with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        build_word_index(Path(folder) / "lucene", ids, tracked(texts, stage, total=len(ids), unit="documents"))
        with WordIndex.open(Path(folder) / "lucene") as words:
            yield words


def run_bm25(index: ImpactIndex, judged: JudgedQueries, parent: Path, depth: int = DEPTH) -> dict[str, Ranking]:
    """BM25 over the words of the bundle's documents, by an index below `parent` that is removed again."""
    with word_index(parent, "words-", index.ids(), document_texts(index), "bm25") as words:
        queries = tracked(judged.queries.items(), "evaluate", total=len(judged.queries), unit="queries")
        return {name: ranking(words.ranked(text, depth, **BM25)) for name, text in queries}


def document_texts(index: ImpactIndex) -> Iterator[str]:
    """Title and text of every document, in ordinal order."""
    for start in range(0, index.count, _CHUNK):
        for raw in index.documents(np.arange(start, min(start + _CHUNK, index.count))):
            yield text_of(json.loads(raw))
