"""Runs (what a system found for every query): their measures, and their files in TREC format."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import ir_measures
import numpy as np
from ir_measures import RR, R, nDCG
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = ["MEASURES", "Ranking", "Run", "measure", "ndcg_per_query", "ranking", "write_run"]

Ranking: TypeAlias = Sequence[tuple[str, float]]
Run: TypeAlias = Mapping[str, Ranking]

MEASURES = ("nDCG@10", "MRR@10", "R@20", "R@50", "R@100")
_MEASURES = dict(zip(MEASURES, (nDCG @ 10, RR @ 10, R @ 20, R @ 50, R @ 100), strict=True))


def ranking(hits: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Documents and scores, best first, with equal scores pulled apart in the last bit of float32.

    trec_eval orders by score alone, and equal scores by document id, backwards. A user sees our order, so this is
    what has to be measured.
    """
    ranked: list[tuple[str, float]] = []
    previous = np.float32(np.inf)
    for document_id, score in hits:
        previous = min(np.float32(score), np.nextafter(previous, np.float32(-np.inf)))
        ranked.append((document_id, float(previous)))
    return ranked


def measure(qrels: Mapping[str, Mapping[str, int]], run: Run) -> dict[str, float]:
    """nDCG@10, MRR@10 and recall at 20, 50 and 100: means over all queries of `qrels`.

    A query without hits counts as 0. Documents of grade above 0 are relevant; nDCG's gain is the grade. A document
    whose id is the query's own is a document like any other.
    """
    judgments, hits = _as_measured(qrels, run)
    if not hits:  # ir_measures can't compute a run without any hit
        return dict.fromkeys(MEASURES, 0.0)
    values = ir_measures.calc_aggregate(_MEASURES.values(), judgments, hits)
    return {name: float(values[_MEASURES[name]]) for name in MEASURES}


def ndcg_per_query(qrels: Mapping[str, Mapping[str, int]], run: Run) -> dict[str, float]:
    """nDCG@10 of every query of `qrels`, 0 for one without hits; their mean is that of `measure`."""
    judgments, hits = _as_measured(qrels, run)
    found = ir_measures.iter_calc([nDCG @ 10], judgments, hits) if hits else []
    values = {metric.query_id: float(metric.value) for metric in found}
    return {query_id: values.get(query_id, 0.0) for query_id in qrels}


def _as_measured(
    qrels: Mapping[str, Mapping[str, int]], run: Run
) -> tuple[list[ir_measures.Qrel], list[ir_measures.ScoredDoc]]:
    judgments = [
        ir_measures.Qrel(query_id, document_id, grade)
        for query_id, grades in qrels.items()
        for document_id, grade in grades.items()
    ]
    hits = [
        ir_measures.ScoredDoc(query_id, document_id, score)
        for query_id, ranked in run.items()
        for document_id, score in ranked
    ]
    return judgments, hits


def write_run(path: Path, run: Run, tag: str) -> None:
    """Write a run in TREC format: `query-id Q0 document-id rank score tag`, ranks from 1.

    The format separates by white space, so white space in an id is percent-encoded there.
    """
    lines = [
        f"{_field(query_id)} Q0 {_field(document_id)} {rank} {score:.9g} {tag}\n"
        for query_id, ranked in run.items()
        for rank, (document_id, score) in enumerate(ranked, start=1)
    ]
    write_atomically(path, "".join(lines).encode())


def _field(text: str) -> str:
    return re.sub(r"\s", lambda match: quote(match[0]), text)
