"""The systems that are compared, run over the judged queries of a dataset by the engine that serves."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.dataset import JudgedQueries
from lightretriever.artifacts.evaluation.full import FullQueryEncoder
from lightretriever.artifacts.evaluation.postings import postings_per_query
from lightretriever.artifacts.evaluation.runs import Ranking, ranking
from lightretriever.artifacts.files.workdir import scratch_folder
from lightretriever.artifacts.progress import ProgressBar, tracked
from lightretriever.artifacts.sparse.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.errors import NoDirectionError, NoTokensError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LinearFusion, Mode, RrfFusion, SearchRequest, Weights
from lightretriever.service.search.encoder import EncodedQuery, QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

__all__ = ["BM25", "PAPER_FUSION", "SYSTEMS", "Fusion", "Results", "Searches", "run_systems"]

Fusion = LinearFusion | RrfFusion

PAPER_FUSION: Final = LinearFusion(weights=Weights(dense=0.7, sparse=0.3), normalization="paper")
BM25: Final = {"k1": 0.9, "b": 0.4}
SYSTEMS: Final = ("dense", "sparse", "hybrid", "hybrid-paper", "full-dense", "full-sparse", "full-hybrid", "bm25")
"""In the order of the report. The `full-` ones encode the query by a whole model instead of the token table."""

_MODES: Final[dict[str, Mode]] = {"dense": "dense", "sparse": "sparse", "hybrid": "hybrid", "hybrid-paper": "hybrid"}
_DEADLINE_MS: Final = 600_000.0  # a late leg would change the result without a word
_LONGEST_QUERY: Final = 10_000_000
_CHUNK: Final = 1024


@dataclass(frozen=True)
class Searches:
    """How every query is searched, and by which of `SYSTEMS` (None: all that can be run)."""

    task: str
    depth: int
    candidates: int
    fusion: Fusion
    only: Collection[str] | None = None

    def wanted(self, full: FullQueryEncoder | None) -> list[str]:
        """The systems to run, in order. Raises RecipeError for one that is unknown, or needs a query model."""
        possible = [name for name in SYSTEMS if not name.startswith("full-") or (full and full.gives(name))]
        if self.only is None:
            return possible
        impossible = sorted(set(self.only) - set(possible))
        if impossible:
            raise RecipeError(
                f"{', '.join(impossible)}: no system that can be run here.",
                remedy=f"Use some of {', '.join(possible)}; the full- ones need --query-model.",
            )
        return [name for name in possible if name in self.only]

    def request(self, query: str, system: str) -> SearchRequest:
        """One search as `system` does it."""
        return SearchRequest(
            query=query,
            k=self.depth,
            candidates=self.candidates,
            mode=_MODES[system.removeprefix("full-")],
            task=self.task,
            fusion=PAPER_FUSION if system == "hybrid-paper" else self.fusion,
            fields=[],
            allow_partial=False,
        )


@dataclass(frozen=True)
class Results:
    """By system: its run, the queries it had to leave unanswered, and the postings of a query's tokens on average."""

    runs: dict[str, dict[str, Ranking]]
    unanswered: dict[str, list[str]]
    postings: dict[str, float]


def run_systems(
    bundle: Bundle,
    index: ImpactIndex,
    judged: JudgedQueries,
    searches: Searches,
    full: FullQueryEncoder | None,
    scratch: Path,
) -> Results:
    """Search with every judged query. BM25's index is made in the folder `scratch`, and removed again."""
    results = Results({}, {}, {})
    wanted = searches.wanted(full)
    settings = Settings(
        deadline_ms=_DEADLINE_MS,
        candidates=searches.candidates,
        max_candidates=searches.candidates,
        max_query_chars=_LONGEST_QUERY,
    )
    with (
        ProgressBar("evaluate", total=len(judged.queries) * len(wanted), unit="queries") as progress,
        SearchEngine.open(bundle, settings) as light,
        _with_encoder(light, full) as whole,
    ):
        for system in wanted:
            if system == "bm25":
                results.runs[system] = _bm25(index, judged, searches.depth, scratch, progress)
                continue
            engine = whole if system.startswith("full-") else light
            _run(engine, system, judged, searches, results, progress)
            if not system.endswith("dense"):
                encoded = _encoded(engine, judged.queries, searches.task)
                results.postings[system] = postings_per_query(index, encoded)
    return results


def _with_encoder(engine: SearchEngine, encoder: QueryEncoder | None) -> SearchEngine:
    """The same engine, with another query encoder where there is one."""
    if encoder is None:
        return engine
    return SearchEngine(engine.bundle, engine.settings, replace(engine.parts, encoder=encoder))


def _run(
    engine: SearchEngine,
    system: str,
    judged: JudgedQueries,
    searches: Searches,
    results: Results,
    progress: ProgressBar,
) -> None:
    run: dict[str, Ranking] = {}
    for query_id, text in judged.queries.items():
        try:
            hits = engine.search(searches.request(text, system)).hits
            run[query_id] = ranking([(hit.id, hit.score) for hit in hits])
        except (NoTokensError, NoDirectionError):
            results.unanswered.setdefault(system, []).append(query_id)
        progress.advance(1)
    results.runs[system] = run


def _encoded(engine: SearchEngine, queries: Mapping[str, str], task: str) -> Iterator[EncodedQuery]:
    """The sparse side of every query that has tokens."""
    for text in queries.values():
        try:
            yield engine.parts.encoder.encode(text, task, StageClock(), dense=False)
        except NoTokensError:
            continue


def _bm25(
    index: ImpactIndex, judged: JudgedQueries, depth: int, scratch: Path, progress: ProgressBar
) -> dict[str, Ranking]:
    """BM25 over the words of the bundle's documents."""
    run: dict[str, Ranking] = {}
    with scratch_folder(scratch, "words-") as folder:
        path = folder / "lucene"
        texts = tracked(_texts(index), "bm25", total=index.count, unit="documents")
        build_word_index(path, index.ids(), texts)
        words = WordIndex.open(path)
        try:
            for query_id, text in judged.queries.items():
                run[query_id] = ranking(words.search(text, depth, **BM25))
                progress.advance(1)
        finally:
            words.close()
    return run


def _texts(index: ImpactIndex) -> Iterator[str]:
    """Title and text of every document, in ordinal order."""
    for start in range(0, index.count, _CHUNK):
        for raw in index.documents(np.arange(start, min(start + _CHUNK, index.count))):
            document = json.loads(raw)
            yield document_text(document.get("title") or "", document.get("text") or "")
