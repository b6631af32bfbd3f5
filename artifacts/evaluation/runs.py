"""Runs (what a system found for every query): their measures, and their files in TREC format."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import ir_measures
import numpy as np
from ir_measures import AP, RR, R, nDCG

from lightretriever.artifacts.corpus.beir import find_file, read_qrels, read_queries
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.workdir import write_atomically

Ranking: TypeAlias = Sequence[tuple[str, float]]
Run: TypeAlias = Mapping[str, Ranking]

MEASURES = ("nDCG@10", "MRR@10", "MAP", "R@10", "R@20", "R@50", "R@100", "R@1000")
_MEASURES = dict(zip(MEASURES, (nDCG @ 10, RR @ 10, AP, R @ 10, R @ 20, R @ 50, R @ 100, R @ 1000), strict=True))


def ranking(hits: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Documents and scores, best first, with equal scores pulled apart in the last bit of float32: trec_eval orders
    them by document id, backwards, and a user sees our order."""
    ranked: list[tuple[str, float]] = []
    previous = np.float32(np.inf)
    for document_id, score in hits:
        previous = min(np.float32(score), np.nextafter(previous, np.float32(-np.inf)))
        ranked.append((document_id, float(previous)))
    return ranked


def without_own(run: Run) -> dict[str, Ranking]:
    """The run without the hits whose document id is the query's own, as BEIR measures sets whose queries are documents
    of the corpus (ArguAna, Quora)."""
    return {query_id: [hit for hit in ranked if hit[0] != query_id] for query_id, ranked in run.items()}


def measure(qrels: Mapping[str, Mapping[str, int]], run: Run, depth: int = 100) -> dict[str, float]:
    """The MEASURES of a run of `depth` hits for each query, R@1000 from 1,000 on: means over all queries of `qrels`.

    A query without hits counts as 0. Documents of grade above 0 are relevant; nDCG's gain is the grade.
    """
    names = MEASURES if depth >= 1000 else MEASURES[:-1]
    values = ir_measures.calc_aggregate([_MEASURES[name] for name in names], qrels, _scores(run))
    return {name: float(values[_MEASURES[name]]) for name in names}


def ndcg_per_query(qrels: Mapping[str, Mapping[str, int]], run: Run) -> dict[str, float]:
    """nDCG@10 of every query of `qrels`, 0 for one without hits; their mean is that of `measure`."""
    metrics = ir_measures.iter_calc([nDCG @ 10], qrels, _scores(run))
    values = {metric.query_id: float(metric.value) for metric in metrics}
    return {query_id: values.get(query_id, 0.0) for query_id in qrels}


def _scores(run: Run) -> dict[str, dict[str, float]]:
    return {query_id: dict(ranked) for query_id, ranked in run.items()}


def write_run(path: Path, run: Run, tag: str) -> None:
    """Write a run in TREC format: `query-id Q0 document-id rank score tag`, ranks from 1, ids by `trec_field`."""
    lines = [
        f"{trec_field(query_id)} Q0 {trec_field(document_id)} {rank} {score:.9g} {tag}\n"
        for query_id, ranked in run.items()
        for rank, (document_id, score) in enumerate(ranked, start=1)
    ]
    write_atomically(path, "".join(lines).encode())


def trec_field(text: str) -> str:
    """An id as it stands in a run file: its white space is percent-encoded."""
    return re.sub(r"\s", lambda match: quote(match[0]), text)


@dataclass(frozen=True)
class JudgedQueries:
    """The queries of a split that have judgments, in file order, and their qrels: query id → document id → grade.
    Judged queries `without_text` are not in the queries file; of those that are, so many are `unjudged`."""

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    without_text: list[str]
    unjudged: int = 0


def qrels_file(dataset: Path, split: str) -> Path:
    """DATASET/qrels/SPLIT.tsv. Raises CorpusError, naming the splits there are, when it is missing."""
    file = Path(dataset) / "qrels" / f"{split}.tsv"
    if not file.is_file():
        splits = ", ".join(sorted(other.stem for other in file.parent.glob("*.tsv"))) or "none"
        raise CorpusError(f"{file}: the qrels are missing.", remedy=f"Splits that are there: {splits}.")
    return file


def read_judged(dataset: Path, split: str) -> JudgedQueries:
    """Read the queries of a split in the folder `dataset`. Raises CorpusError when no judged query has a text, or one
    has an empty text."""
    file = qrels_file(dataset, split)
    qrels = read_qrels(file)
    texts = read_queries(find_file(dataset, "queries"), qrels)
    queries = {query_id: text for query_id, text in texts.items() if query_id in qrels}
    if not queries:
        raise CorpusError(
            f"{file}: none of its {len(qrels)} queries is among the {len(texts)} of {dataset}.",
            remedy="Give qrels and queries that belong together.",
        )
    without_text = [query_id for query_id in qrels if query_id not in texts]
    judged = {query_id: qrels[query_id] for query_id in queries}
    return JudgedQueries(queries, judged, without_text, len(texts) - len(queries))


def relevant_but_missing(judged: JudgedQueries, ids: Container[str]) -> list[str]:
    """Relevant documents (grade above 0) that are not among `ids`, each once. Raises CorpusError when all are missing,
    or no document is relevant at all."""
    grades = [pair for judgments in judged.qrels.values() for pair in judgments.items()]
    relevant = list(dict.fromkeys(document for document, grade in grades if grade > 0))
    missing = [document for document in relevant if document not in ids]
    if not relevant:
        raise CorpusError(
            f"None of the {len(grades)} judgments has a grade above 0.", remedy="Give qrels with relevant documents."
        )
    if len(missing) == len(relevant):
        raise CorpusError(
            f"None of the {len(missing)} relevant documents is in the bundle (the first: {missing[:3]}).",
            remedy="Evaluate a bundle of the corpus that the qrels belong to.",
        )
    return missing
