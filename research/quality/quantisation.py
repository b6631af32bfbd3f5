"""How many impacts a unit of BM25 needs, so that the sparse leg over words ranks as Lucene's own BM25.

    python -m research.quality.quantisation --data DIR --work runs/quantisation --results docs/results/quantisation.json

Every collection is indexed by Lucene's BM25 on English words, and as impacts without expansion, at several numbers of
impacts a unit. For each the program records nDCG@10, and the share of the queries whose first ten documents are the
same in the same order, where documents whose scores differ by less than the float32 of a score are ties.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.evaluation.bm25 import BM25_B, BM25_K1, WordIndex, build_word_index
from lightretriever.artifacts.evaluation.report import environment
from lightretriever.artifacts.evaluation.runs import JudgedQueries, measure, ranking, read_judged
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.encoded import TermCounts, csr
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import write_json
from research.quality.evaluate import COLLECTIONS, Collection
from research.quality.judged_part import write_judged_part

__all__ = ["agreement", "main"]

DEPTH: Final = 100
_TIE: Final = 2e-6  # of a score: a float32 has 24 bits, and a sum of products some more errors


def measured(collection: Collection, given: Namespace) -> dict[str, Any]:
    """BM25's nDCG@10, and by impacts a unit nDCG@10 and the share of equal first tens."""
    path = collection.path(given)
    if collection.part and not path.is_dir():
        write_judged_part(given.data / collection.folder, path)
    judged = read_judged(path, "test")
    documents = list(Corpus(path, skip_bad=collection.skip_bad))
    texts = [document.full_text for document in documents]
    ids = [document.id for document in documents]
    with TemporaryDirectory(prefix=f"{collection.name}-", dir=given.work) as place:
        folder = Path(place)
        build_word_index(folder / "words", ids, texts)
        with WordIndex.open(folder / "words") as words:
            exact = {query: words.search(text, DEPTH) for query, text in judged.queries.items()}
        row: dict[str, Any] = {"queries": len(exact), "documents": len(ids), "bm25": _ndcg(judged, exact)}
        for impacts in given.impacts:
            vocabulary = Vocabulary(None, "english")
            encoder = Bm25Encoder.of(
                TermCounts.of(vocabulary.terms_of(texts)), vocabulary, quantization=impacts, k1=BM25_K1, b=BM25_B
            )
            rows = encoder.impacts(texts)
            with ImpactIndexWriter(folder / f"{impacts}") as writer:
                writer.add(ids, [b"{}"] * len(ids), *csr(rows), names=encoder.numbers.names)
            with ImpactIndex.open(folder / f"{impacts}") as index:
                run = {query: searched(index, ids, vocabulary, text) for query, text in judged.queries.items()}
            row[f"{impacts}"] = {"ndcg": _ndcg(judged, run), "equal": agreement(exact, run)}
            print(collection.name, impacts, row[f"{impacts}"], "bm25", row["bm25"], file=sys.stderr)
    return row


def searched(index: ImpactIndex, ids: Sequence[str], vocabulary: Vocabulary, text: str) -> list[tuple[str, float]]:
    """The best documents by the impacts of a text's words."""
    terms = vocabulary.terms_of([text])[0]
    ordinals, scores = index.search(terms, np.ones(len(terms), np.float32), DEPTH)
    return [(ids[ordinal], score) for ordinal, score in zip(ordinals.tolist(), scores.tolist(), strict=True)]


def agreement(
    exact: dict[str, list[tuple[str, float]]], run: dict[str, list[tuple[str, float]]], depth: int = 10
) -> float:
    """The share of queries whose first documents are those of the exact ranking, in an order that its scores allow:
    each place has a document whose exact score is that of the place, but for ties."""
    equal = 0
    for query, hits in exact.items():
        scores, theirs = dict(hits), run[query][:depth]
        wanted = [score for _, score in hits[:depth]]
        equal += len(wanted) == len(theirs) and all(
            abs(scores.get(document, 0.0) - score) <= _TIE * max(1.0, score)
            for (document, _), score in zip(theirs, wanted, strict=True)
        )
    return equal / len(exact)


def _ndcg(judged: JudgedQueries, run: dict[str, list[tuple[str, float]]]) -> float:
    return measure(judged.qrels, {query: ranking(hits) for query, hits in run.items()})["nDCG@10"]


@program(
    option("--data", Path, "folder of the collections"),
    option("--work", Path, "folder for indexes"),
    option("--results", Path, "file to write"),
    option("--impacts", [25, 50, 100, 200, 400, 1000, 4000], "impacts a unit of BM25"),
)
def main(given: Namespace) -> None:
    """Measure every collection, and write the results."""
    given.work.mkdir(parents=True, exist_ok=True)
    found = {one.name: measured(one, given) for one in COLLECTIONS if one.usual}
    content = {"k1": BM25_K1, "b": BM25_B, "collections": found, "environment": environment()}
    write_json(given.results, content)


if __name__ == "__main__":
    sys.exit(main())
