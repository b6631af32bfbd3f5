"""The part of a collection that one of its splits judges, as a collection of its own.

    python -m research.quality.judged_part COLLECTION OUTPUT [--split test]

A collection made for training may have many more documents than its test questions are about, and encoding them all
with a language model takes hours. OUTPUT gets the documents, queries and judgments of the split alone, in their order.
Fewer documents are easier to search: figures of the part are to be compared with each other only.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path

from lightretriever.artifacts.corpus.beir import Corpus, find_file, read_qrels, read_queries
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.atomic_dir import new_folder
from lightretriever.loadtest.program import option, program

__all__ = ["main", "write_judged_part"]


def write_judged_part(collection: Path, output: Path, split: str = "test") -> None:
    """Write the part into the new folder `output`, in BEIR layout.

    Raises CorpusError where the collection can't be read or lacks a document or query that the split judges.
    """
    judgments = collection / "qrels" / f"{split}.tsv"
    qrels = read_qrels(judgments)
    wanted = {document for judged in qrels.values() for document in judged}
    documents = [document for document in Corpus(collection) if document.id in wanted]
    queries = read_queries(find_file(collection, "queries"))
    lost = sorted((wanted - {document.id for document in documents}) | (qrels.keys() - queries.keys()))
    if lost:
        raise CorpusError(
            f"{judgments}: {len(lost)} of the documents and queries it names are not there, such as {lost[0]!r}.",
            remedy="Fetch the collection again.",
        )
    with new_folder(output, overwrite=False, marker="corpus.jsonl") as folder:
        (folder / "qrels").mkdir()
        (folder / "qrels" / f"{split}.tsv").write_bytes(judgments.read_bytes())
        (folder / "corpus.jsonl").write_bytes(b"".join(document.raw + b"\n" for document in documents))
        lines = [json.dumps({"_id": name, "text": queries[name]}, ensure_ascii=False) + "\n" for name in qrels]
        (folder / "queries.jsonl").write_text("".join(lines), encoding="utf-8")


@program(
    option("collection", Path, "folder in BEIR layout"),
    option("output", Path, "folder to make"),
    option("--split", "test", "name of the judgments, as in qrels/test.tsv"),
)
def main(given: Namespace) -> None:
    """Write the part."""
    write_judged_part(given.collection, given.output, given.split)


if __name__ == "__main__":
    sys.exit(main())
