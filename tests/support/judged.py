"""Queries and their judgments in BEIR layout, and their evaluation with the engine that serves."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from lightretriever.artifacts.evaluation import evaluate
from lightretriever.service.commands.evaluation import open_searcher

#: As the command line puts them together.
evaluate_bundle = partial(evaluate.evaluate_bundle, open_searcher)


def write_queries(folder: Path, queries: Mapping[str, str] | Iterable[str]) -> Path:
    """Write queries, by their ids or numbered from 0, into a folder, which is made, and give their file."""
    named = queries if isinstance(queries, Mapping) else {str(number): text for number, text in enumerate(queries)}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "queries.jsonl"
    lines = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in named.items()]
    file.write_text("".join(lines), encoding="utf-8")
    return file


def write_judged(
    folder: Path, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]], split: str = "test"
) -> Path:
    """Write queries and the grades of documents for them into a folder, and give it."""
    write_queries(folder, queries)
    (folder / "qrels").mkdir(exist_ok=True)
    lines = [f"{query}\t{document}\t{grade}\n" for query, grades in qrels.items() for document, grade in grades.items()]
    content = "query-id\tcorpus-id\tscore\n" + "".join(lines)
    (folder / "qrels" / f"{split}.tsv").write_text(content, encoding="utf-8")
    return folder
