"""Judged queries of a test collection in BEIR layout."""

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from lightretriever.artifacts.corpus.beir import find_file, read_qrels, read_queries
from lightretriever.artifacts.errors import CorpusError

__all__ = ["JudgedQueries", "qrels_file", "read_judged", "relevant_but_missing"]


@dataclass(frozen=True)
class JudgedQueries:
    """The queries of a split that have judgments, in file order, and their qrels: query id → document id → grade.

    `without_text` are the ids of judged queries that the queries file does not have.
    """

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    without_text: list[str]


def qrels_file(dataset: Path, split: str) -> Path:
    """DATASET/qrels/SPLIT.tsv. Raises CorpusError, naming the splits there are, when it is missing."""
    file = Path(dataset) / "qrels" / f"{split}.tsv"
    if not file.is_file():
        splits = ", ".join(sorted(other.stem for other in file.parent.glob("*.tsv"))) or "none"
        raise CorpusError(f"{file}: the qrels are missing.", remedy=f"Splits that are there: {splits}.")
    return file


def read_judged(dataset: Path, split: str) -> JudgedQueries:
    """Read the queries of a split in the folder `dataset`. Raises CorpusError when no judged query has a text."""
    file = qrels_file(dataset, split)
    qrels = read_qrels(file)
    texts = read_queries(find_file(dataset, "queries"))
    queries = {query_id: text for query_id, text in texts.items() if query_id in qrels}
    if not queries:
        raise CorpusError(
            f"{file}: none of its {len(qrels)} queries is among the {len(texts)} of {dataset}.",
            remedy="Give qrels and queries that belong together.",
        )
    without_text = [query_id for query_id in qrels if query_id not in texts]
    return JudgedQueries(queries, {query_id: qrels[query_id] for query_id in queries}, without_text)


def relevant_but_missing(judged: JudgedQueries, ids: Container[str]) -> list[str]:
    """Relevant documents (grade above 0) that are not among `ids`, each once.

    Raises CorpusError when all are missing, or when no document is relevant at all.
    """
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
