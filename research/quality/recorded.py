"""The file of results: one row per system and dataset, and beside it nDCG@10 of every query.

quality.json            {"rows": [{"system", "dataset", "ndcg@10", "recall@100", "queries", "command", …}]}
quality.queries.json.gz {dataset: {"queries": [id], "ndcg@10": {system: [value]}}}, for paired tests
"""

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ir_measures

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.evaluate import REPORT_FILE
from lightretriever.artifacts.evaluation.runs import ndcg_per_query, read_judged, trec_field
from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.loadtest.program import typed_command
from lightretriever.service.cli import app
from research.record import ROOT, machine_name

RESULTS: Final = ROOT / "docs" / "results"

Row = dict[str, Any]
PerQuery = dict[str, dict[str, Any]]
"""By dataset: the ids of its queries, and under "ndcg@10" by system one value for each of them."""

MEASURE: Final = "ndcg@10"
"""The measure that is kept for every query."""
BASELINE: Final = "bm25"
_KEYS: Final = {"ndcg@10": "nDCG@10", "recall@100": "R@100", "mrr@10": "MRR@10"}
_DIGITS: Final = 5
_OTHER: Final = "Results on different queries can't be compared: evaluate the same split, or begin a new file."


def run(command: Sequence[str]) -> None:
    """Run a command of `lightretriever`, and print it as if it had been typed. Raises its errors."""
    print(typed_command(["lightretriever", *command]), file=sys.stderr)
    app(list(command), standalone_mode=False)


def evaluate_and_record(command: Sequence[str], file: Path, name: str, note: str = "") -> None:
    """Run `lightretriever` with the arguments evaluate BUNDLE DATASET --output FOLDER …, given in this order, and
    record its measures in `file` as `name`. Raises what the command raises."""
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
        values[system if system == BASELINE else f"{name} {system}"] = ndcg_per_query(qrels, found)
    record(file, result_rows(report, name, typed_command(["lightretriever", *command]), note), values)


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
        row = {"system": system if system == BASELINE else f"{name} {system}", **common}
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
    """The rows of a file of results, none where there is no file."""
    rows: list[Row] = read_json(file)["rows"] if file.is_file() else []
    return rows


def read_queries_file(file: Path) -> PerQuery:
    """The values of the single queries beside the rows in `file`, nothing where there are none."""
    beside = queries_file(file)
    found: PerQuery = json.loads(gzip.decompress(beside.read_bytes())) if beside.is_file() else {}
    return found


def record(file: Path, rows: Sequence[Row], values: Mapping[str, Mapping[str, float]]) -> None:
    """Put rows of one dataset into the file of results, in place of those of the same system and dataset. `values` has,
    by system, the nDCG@10 of every query. RecipeError where the file has the dataset with other queries."""
    kept = {(row["dataset"], row["system"]): row for row in [*read_rows(file), *rows]}
    queries, dataset = read_queries_file(file), rows[0]["dataset"]
    for system, by_query in values.items():
        ids = sorted(by_query)
        entry = queries.setdefault(dataset, {"queries": ids, MEASURE: {}})
        if entry["queries"] != ids:
            raise RecipeError(f"{queries_file(file)}: {dataset} is recorded with other queries.", remedy=_OTHER)
        entry[MEASURE][system] = [round(by_query[query], _DIGITS) for query in ids]
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(kept[key], ensure_ascii=False) for key in sorted(kept))
    packed = gzip.compress(json.dumps(queries, sort_keys=True, separators=(",", ":")).encode(), mtime=0)
    write_atomically(queries_file(file), packed)
    write_atomically(file, f'{{"rows": [\n{lines}\n]}}\n'.encode())
