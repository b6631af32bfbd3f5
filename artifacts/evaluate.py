"""Evaluation of a bundle on a test collection, through the very engine that serves it.

Systems: `dense` and `sparse` alone, `hybrid` with the given fusion, `hybrid-paper` with the paper's min-max fusion, and
`bm25` on the words of the bundle's own documents.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from artifacts.bundle import Bundle
from artifacts.corpus import file_sha256, find_file
from artifacts.errors import CorpusError, RecipeError
from artifacts.evaluation.dataset import JudgedQueries, qrels_file, read_judged, relevant_but_missing
from artifacts.evaluation.report import describe_bundle, environment
from artifacts.evaluation.runs import MEASURES, Ranking, measure, ranking, write_run
from artifacts.lucene.search import ImpactIndex
from artifacts.lucene.words import WordIndex, build_word_index
from artifacts.progress import ProgressBar
from artifacts.text import document_text
from artifacts.work import write_atomically
from service.engine import SearchEngine
from service.errors import NoDirectionError, NoTokensError
from service.schemas import LinearFusion, Mode, RrfFusion, SearchRequest
from service.settings import Settings

__all__ = ["REPORT_FILE", "Evaluation", "evaluate_bundle", "fusion_of"]

REPORT_FILE: Final = "evaluation.json"
_DEPTH: Final = 100  # the largest cut-off of the measures
_DEADLINE_MS: Final = 600_000.0  # a late leg would change the result without a word
_LONGEST_QUERY: Final = 10_000_000
_BM25: Final = {"k1": 0.9, "b": 0.4}
_NAMED: Final = 10  # ids named in a warning
_CHUNK: Final = 1024

Fusion = LinearFusion | RrfFusion


@dataclass(frozen=True)
class Evaluation:
    """The result: `metrics` by system and measure, and the whole `report` as written to `evaluation.json`."""

    metrics: dict[str, dict[str, float]]
    report: dict[str, Any]


def evaluate_bundle(
    bundle_path: Path,
    dataset: Path,
    output: Path,
    *,
    split: str = "test",
    task: str | None = None,
    depth: int = _DEPTH,
    candidates: int = _DEPTH,
    fusion: Fusion | None = None,
) -> Evaluation:
    """Search with every judged query of DATASET/qrels/SPLIT.tsv and measure nDCG@10, MRR@10, R@20, R@50 and R@100.

    `depth` hits are kept per query, `candidates` are proposed by each leg for the fusion (None for `fusion`: the
    service's default). Writes `evaluation.json` and one TREC run file per system, SYSTEM.trec, to the folder `output`.
    Judged documents that the bundle lacks count as not found, and are warned of.

    Raises BundleError for a bundle or a task that can't be used, CorpusError for a dataset that can't be read or has
    nothing in common with the bundle, RecipeError for impossible settings.
    """
    if not _DEPTH <= depth <= candidates:
        raise RecipeError(
            f"depth is {depth} and candidates is {candidates}; {_DEPTH} <= depth <= candidates is needed, as "
            f"{MEASURES[-1]} is measured."
        )
    bundle = Bundle.open(bundle_path)
    task = task or bundle.manifest.default_task
    bundle.table(task)
    judged = read_judged(dataset, split)
    fusion = fusion or LinearFusion()
    output.mkdir(parents=True, exist_ok=True)
    index = bundle.sparse()
    try:
        missing = relevant_but_missing(judged, set(index.ids()))
        runs, unanswered = _runs(bundle, index, judged, _Searches(task, depth, candidates, fusion), output)
    finally:
        index.close()
    for system, run in runs.items():
        write_run(output / f"{system}.trec", run, tag="-".join([*bundle.manifest.name.split(), system]))
    metrics = {system: measure(judged.qrels, run) for system, run in runs.items()}
    report = {
        "bundle": describe_bundle(bundle),
        "dataset": _describe_dataset(dataset, split, judged, missing),
        "settings": {
            "task": task,
            "depth": depth,
            "candidates": candidates,
            "fusion": {"hybrid": fusion.model_dump(), "hybrid-paper": _PAPER.model_dump()},
            "bm25": _BM25,
        },
        "metrics": metrics,
        "queries_without_answer": unanswered,
        "runs": {system: f"{system}.trec" for system in runs},
        "warnings": list(_warnings(bundle, dataset, judged, missing, unanswered)),
        "environment": environment(),
    }
    write_atomically(output / REPORT_FILE, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
    return Evaluation(metrics, report)


def fusion_of(method: str, weights: tuple[float, float] | None = None) -> Fusion:
    """The service's fusion `method` ("linear" or "rrf"), with weights of dense and sparse (None: its defaults).

    Raises RecipeError for another method, or for weights that can't be used.
    """
    kinds: dict[str, type[LinearFusion] | type[RrfFusion]] = {"linear": LinearFusion, "rrf": RrfFusion}
    if method not in kinds:
        raise RecipeError(f"fusion is {method!r}.", remedy=f"Use one of: {', '.join(kinds)}.")
    given = {} if weights is None else {"weights": {"dense": weights[0], "sparse": weights[1]}}
    try:
        return kinds[method].model_validate({"method": method, **given})
    except ValidationError as error:
        raise RecipeError(f"fusion weights are {weights}: {error.errors()[0]['msg']}.") from error


_PAPER: Final = LinearFusion(normalization="paper")


@dataclass(frozen=True)
class _Searches:
    """How every query is searched."""

    task: str
    depth: int
    candidates: int
    fusion: Fusion

    def systems(self) -> dict[str, tuple[Mode, Fusion]]:
        """Mode and fusion of each system that the engine runs."""
        return {
            "dense": ("dense", self.fusion),
            "sparse": ("sparse", self.fusion),
            "hybrid": ("hybrid", self.fusion),
            "hybrid-paper": ("hybrid", _PAPER),
        }

    def request(self, query: str, mode: Mode, fusion: Fusion) -> SearchRequest:
        return SearchRequest(
            query=query,
            k=self.depth,
            candidates=self.candidates,
            mode=mode,
            task=self.task,
            fusion=fusion,
            fields=[],
            allow_partial=False,
        )


Runs = dict[str, dict[str, Ranking]]


def _runs(
    bundle: Bundle, index: ImpactIndex, judged: JudgedQueries, searches: _Searches, output: Path
) -> tuple[Runs, dict[str, list[str]]]:
    """The run of every system, and per system the queries that it had to leave unanswered."""
    runs: Runs = {}
    unanswered: dict[str, list[str]] = {}
    settings = Settings(
        deadline_ms=_DEADLINE_MS,
        candidates=searches.candidates,
        max_candidates=searches.candidates,
        max_query_chars=_LONGEST_QUERY,
    )
    systems = searches.systems()
    with (
        ProgressBar("evaluate", total=len(judged.queries) * (len(systems) + 1), unit="queries") as progress,
        SearchEngine.open(bundle, settings) as engine,
    ):
        for system, (mode, fusion) in systems.items():
            run: dict[str, Ranking] = {}
            for query_id, text in judged.queries.items():
                try:
                    hits = engine.search(searches.request(text, mode, fusion)).hits
                    run[query_id] = ranking([(hit.id, hit.score) for hit in hits])
                except (NoTokensError, NoDirectionError):
                    unanswered.setdefault(system, []).append(query_id)
                progress.advance(1)
            runs[system] = run
        runs["bm25"] = _bm25(index, judged, searches.depth, output, progress)
    return runs, unanswered


def _bm25(
    index: ImpactIndex, judged: JudgedQueries, depth: int, output: Path, progress: ProgressBar
) -> dict[str, Ranking]:
    """BM25 over the words of the bundle's documents, in an index that is removed again."""
    run: dict[str, Ranking] = {}
    with tempfile.TemporaryDirectory(prefix="words-", dir=output) as folder:
        path = Path(folder) / "lucene"
        build_word_index(path, index.ids(), _texts(index))
        words = WordIndex.open(path)
        try:
            for query_id, text in judged.queries.items():
                run[query_id] = ranking(words.search(text, depth, **_BM25))
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


def _describe_dataset(dataset: Path, split: str, judged: JudgedQueries, missing: list[str]) -> dict[str, Any]:
    files = {"queries": find_file(dataset, "queries"), "qrels": qrels_file(dataset, split)}
    grades = [grade for grades in judged.qrels.values() for grade in grades.values()]
    return {
        "name": dataset.resolve().name,
        "split": split,
        "queries": len(judged.queries),
        "judgments": len(grades),
        "relevant_judgments": sum(grade > 0 for grade in grades),
        "queries_without_text": len(judged.without_text),
        "relevant_documents_missing_in_bundle": len(missing),
        "sha256": {name: file_sha256(file) for name, file in files.items()},
    }


def _warnings(
    bundle: Bundle, dataset: Path, judged: JudgedQueries, missing: list[str], unanswered: dict[str, list[str]]
) -> Iterator[str]:
    if missing:
        yield (
            f"{len(missing)} relevant documents are not in the bundle and count as not found: {_some(missing)}. "
            "The measures are too low to be compared with others."
        )
    if judged.without_text:
        yield f"{len(judged.without_text)} judged queries have no text and are left out: {_some(judged.without_text)}."
    for system, queries in unanswered.items():
        yield f"{system}: {len(queries)} queries can't be encoded and count as 0: {_some(queries)}."
    expected = bundle.manifest.corpus.sha256
    try:
        found = file_sha256(find_file(dataset, "corpus"))
    except CorpusError:
        return  # the bundle has its documents in itself; the corpus file is not needed
    if expected is not None and found != expected:
        yield f"The bundle was made from another corpus file (SHA-256 {expected}) than {dataset} has ({found})."


def _some(ids: Iterable[str]) -> str:
    listed = list(ids)
    return ", ".join(listed[:_NAMED]) + (", …" if len(listed) > _NAMED else "")
