"""Evaluate a bundle on a collection, and record the measures in the file of results.

    python -m research.quality.recorded BUNDLE COLLECTION --output FOLDER --system NAME [-- OPTIONS OF evaluate]

    quality.json            {"rows": [{"system", "dataset", "ndcg@10", "recall@100", "queries", "command", …}]}
    quality.queries.json.gz {dataset: {"queries": [id], "ndcg@10": {system: [value]}}}, for paired tests

There is one row per system and dataset. Both files are written here alone, each whole or not at all, by one process at
a time.
"""

import fcntl
import gzip
import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import ir_measures

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.evaluate import REPORT_FILE
from lightretriever.artifacts.evaluation.runs import ndcg_per_query, read_judged, trec_field
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.loadtest.program import BUNDLE, REST, option, program, typed_command
from lightretriever.service.cli import app
from research.record import ROOT, machine_name

__all__ = [
    "BASELINE",
    "MEASURE",
    "RESULTS",
    "PerQuery",
    "Row",
    "check_recording",
    "evaluate_and_record",
    "main",
    "queries_file",
    "read_queries_file",
    "read_rows",
    "record",
    "result_rows",
    "run",
    "system_name",
]

RESULTS: Final = ROOT / "docs" / "results"

Row = dict[str, Any]
PerQuery = dict[str, dict[str, Any]]
"""By dataset: the ids of its queries, and under "ndcg@10" by system one value for each of them."""

MEASURE: Final = "ndcg@10"
"""The measure that is kept for every query."""
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+-]*")
_KEYS: Final = {"ndcg@10": "nDCG@10", "recall@100": "R@100", "mrr@10": "MRR@10"}
_DIGITS: Final = 5
BASELINE: Final = "bm25"
_MADE_BY: Final = "It is written by research.quality.recorded alone; restore it, or move it away."


def run(command: Sequence[str]) -> None:
    """Run a command of `lightretriever`, and print it as if it had been typed. Raises its errors."""
    print(typed_command(["lightretriever", *command]), file=sys.stderr)
    app(list(command), standalone_mode=False)


def evaluate_and_record(command: Sequence[str], file: Path, name: str, note: str = "") -> None:
    """Run `lightretriever` with the arguments evaluate BUNDLE DATASET --output FOLDER …, given in this order, and
    record its measures in `file` as `name`. Raises RecipeError, before hours of searching, for a name or a file that
    can't be used, and what the command raises."""
    check_recording(file, name)
    run(command)
    dataset, output = Path(command[2]), Path(command[4])
    report = read_json(output / REPORT_FILE)
    judged = read_judged(dataset, report["dataset"]["split"]).qrels
    qrels = {
        trec_field(query): {trec_field(document): grade for document, grade in grades.items()}
        for query, grades in judged.items()
    }
    values: dict[str, dict[str, float]] = {}
    for system, trec in report["runs"].items():
        found: dict[str, list[tuple[str, float]]] = {}
        for hit in ir_measures.read_trec_run(str(output / trec)):  # type: ignore[no-untyped-call]
            found.setdefault(hit.query_id, []).append((hit.doc_id, hit.score))
        values[system_name(name, system)] = ndcg_per_query(qrels, found)
    record(file, result_rows(report, name, typed_command(["lightretriever", *command]), note), values)


def check_recording(file: Path, name: str) -> None:
    """Raise RecipeError where results can't be recorded in `file` as `name`."""
    if not _NAME.fullmatch(name) or name == "bm25":
        raise RecipeError(
            f"--system is {name!r}.", remedy="Use letters, digits and the signs . _ + -, and not bm25, the baseline."
        )
    read_rows(file)
    read_queries_file(file)


def system_name(name: str, system: str) -> str:
    """The name in a row of the `system` of an evaluation recorded as `name`; BM25 has one name for all."""
    return system if system == "bm25" else f"{name} {system}"


def result_rows(report: Mapping[str, Any], name: str, command: str, note: str = "") -> list[Row]:
    """Return the rows of one evaluation (its `evaluation.json`), recorded as `name`: measures, what was searched, how,
    and where. The dataset of another split than `test` is called DATASET/SPLIT."""
    dataset, bundle, settings = report["dataset"], report["bundle"], report["settings"]
    split = dataset["split"]
    common = {
        "dataset": dataset["name"] if split == "test" else f"{dataset['name']}/{split}",
        "split": split,
        "queries": dataset["queries"],
        "documents": bundle["documents"],
        "relevant_documents_missing": dataset["relevant_documents_missing_in_bundle"],
        "command": command,
        "machine": machine_name(report["environment"]["machine"]),
        "date": report["environment"]["date"],
    } | ({"note": note} if note else {})
    rows = []
    for system, measures in report["metrics"].items():
        row = {"system": system_name(name, system), **common}
        row |= {key: round(measures[measure], _DIGITS) for key, measure in _KEYS.items()}
        if system == BASELINE:
            row["bm25"] = settings["bm25"]
        else:
            row |= {"bundle": bundle["digest"], "model": bundle["model"]["name"], "adapter": bundle["model"]["adapter"]}
            row |= {"dimension": bundle["dimension"], "sparse": bundle["sparse"], "settings": settings}
        if unanswered := report["queries_without_answer"].get(system):
            row["queries_without_answer"] = len(unanswered)
        rows.append(row)
    return rows


def queries_file(file: Path) -> Path:
    """Where the values of the single queries lie, beside the rows in `file`."""
    return file.with_suffix(".queries.json.gz")


def read_rows(file: Path) -> list[Row]:
    """The rows of a file of results, none where there is no file. Raises RecipeError for a file of something else."""
    if not file.is_file():
        return []
    content = _parsed(file, file.read_bytes())
    rows = content.get("rows")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and {"system", "dataset"} <= set(row) for row in rows
    ):
        raise RecipeError(f"{file}: no file of results, which has rows with a system and a dataset.", remedy=_MADE_BY)
    return rows


def read_queries_file(file: Path) -> PerQuery:
    """The values of the single queries beside the rows in `file`, nothing where there are none. Raises RecipeError."""
    beside = queries_file(file)
    if not beside.is_file():
        return {}
    try:
        content = gzip.decompress(beside.read_bytes())
    except (OSError, EOFError) as error:
        raise RecipeError(f"{beside}: can't be read: {error}.", remedy=_MADE_BY) from error
    return _parsed(beside, content)


def record(file: Path, rows: Sequence[Row], values: Mapping[str, Mapping[str, float]]) -> None:
    """Put rows of one dataset into the file of results, in place of those of the same system and dataset. `values` has,
    by system, the nDCG@10 of every query. Waits for another process that is writing. Raises RecipeError when the file
    is something else, or holds the dataset with other queries."""
    if not rows:
        return
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.parent):
        kept = {(row["dataset"], row["system"]): row for row in [*read_rows(file), *rows]}
        queries = read_queries_file(file)
        _merge(queries, rows[0]["dataset"], values, file)
        lines = ",\n".join(json.dumps(kept[key], ensure_ascii=False) for key in sorted(kept))
        packed = gzip.compress(json.dumps(queries, sort_keys=True, separators=(",", ":")).encode(), mtime=0)
        write_atomically(queries_file(file), packed)
        write_atomically(file, f'{{"rows": [\n{lines}\n]}}\n'.encode())


def _merge(queries: PerQuery, dataset: str, values: Mapping[str, Mapping[str, float]], file: Path) -> None:
    for system, by_query in values.items():
        ids = sorted(by_query)
        entry = queries.setdefault(dataset, {"queries": ids, MEASURE: {}})
        if entry["queries"] != ids:
            raise RecipeError(
                f"{queries_file(file)}: {dataset} is recorded with {len(entry['queries'])} queries, these are "
                f"{len(ids)}, or others.",
                remedy="Results on different queries can't be compared: evaluate the same split, or begin a new file.",
            )
        entry[MEASURE][system] = [round(by_query[query], _DIGITS) for query in ids]


def _parsed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise RecipeError(f"{file}: not JSON: {error}.", remedy=_MADE_BY) from error
    if not isinstance(parsed, dict):
        raise RecipeError(f"{file}: expected a JSON object, found {type(parsed).__name__}.", remedy=_MADE_BY)
    return parsed


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process: a lock on the folder itself leaves no file behind."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@program(
    BUNDLE,
    option("collection", Path, "BEIR folder with queries and qrels"),
    option("--output", Path, "folder for evaluation.json and the TREC runs"),
    option("--system", str, "what the results are recorded as"),
    option("--note", "", "a remark to record with the results"),
    option("--results", RESULTS / "quality.json"),
    REST,
)
def main(given: Namespace) -> None:
    """Evaluate and record."""
    command = ["evaluate", str(given.bundle), str(given.collection), "--output", str(given.output), *given.rest]
    evaluate_and_record(command, given.results, given.system, given.note)


if __name__ == "__main__":
    sys.exit(main())
