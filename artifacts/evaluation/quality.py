"""The file of results: one row per system and dataset, and beside it the nDCG@10 of every single query.

    quality.json            {"rows": [{"system", "dataset", "ndcg@10", "recall@100", "queries", "command", …}]}
    quality.queries.json.gz {dataset: {"queries": [id], "ndcg@10": {system: [value]}}}, for paired tests

Both are written by `lightretriever evaluate` alone, each whole or not at all, by one process at a time.
"""

import fcntl
import gzip
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.report import machine_name
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = [
    "MEASURE",
    "PerQuery",
    "Row",
    "check_recording",
    "queries_file",
    "read_queries_file",
    "read_rows",
    "record",
    "result_rows",
    "system_name",
    "typed_command",
]

Row = dict[str, Any]
PerQuery = dict[str, dict[str, Any]]
"""By dataset: the ids of its queries, and under "ndcg@10" by system one value for each of them."""

MEASURE: Final = "ndcg@10"
"""The measure that is kept for every query."""
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+-]*")
_KEYS: Final = {
    "ndcg@10": "nDCG@10",
    "recall@100": "R@100",
    "mrr@10": "MRR@10",
    "recall@20": "R@20",
    "recall@50": "R@50",
}
_DIGITS: Final = 5
_MADE_BY: Final = "It is written by `lightretriever evaluate --results` alone; restore it, or move it away."


def check_recording(file: Path | None, name: str | None) -> str:
    """The name that results are to be recorded as in `file`, "" where nothing is recorded.

    Raises RecipeError, before hours of searching, for a name or a file that can't be used.
    """
    if file is None and name is None:
        return ""
    if file is None or name is None:
        raise RecipeError("--results and --system need each other.", remedy="Give both, or none of them.")
    if not _NAME.fullmatch(name) or name == "bm25":
        raise RecipeError(
            f"--system is {name!r}.", remedy="Use letters, digits and the signs . _ + -, and not bm25, the baseline."
        )
    read_rows(file)
    read_queries_file(file)
    return name


def system_name(name: str, system: str) -> str:
    """The name in a row of the `system` of an evaluation recorded as `name`; BM25 has one name for all."""
    return system if system == "bm25" else f"{name} {system}"


def result_rows(report: Mapping[str, Any], name: str, command: str, note: str = "") -> list[Row]:
    """The rows of one evaluation (its `evaluation.json`), recorded as `name`.

    Measures, what was searched and where, and `command`; facts that a system does not depend on are left out. The
    dataset of another split than `test` is called DATASET/SPLIT.
    """
    dataset = report["dataset"]
    split = dataset["split"]
    common = {
        "split": split,
        "queries": dataset["queries"],
        "documents": report["bundle"]["documents"],
    } | ({"relevant_documents_missing": gone} if (gone := dataset["relevant_documents_missing_in_bundle"]) else {})
    made = {
        "command": command,
        "machine": machine_name(report["environment"]["machine"]),
        "date": report["environment"]["date"],
    } | ({"note": note} if note else {})
    return [
        {
            "system": system_name(name, system),
            "dataset": dataset["name"] if split == "test" else f"{dataset['name']}/{split}",
        }
        | {key: round(measures[measure], _DIGITS) for key, measure in _KEYS.items()}
        | common
        | _facts(report, system)
        | made
        for system, measures in report["metrics"].items()
    ]


def _facts(report: Mapping[str, Any], system: str) -> Row:
    """The settings that decide the rank of a document under `system`."""
    if system == "bm25":
        return {"bm25": report["settings"]["bm25"]}
    bundle, settings = report["bundle"], report["settings"]
    facts = {"model": bundle["model"]["name"], "adapter": bundle["model"]["adapter"], "bundle": bundle["digest"]}
    leg = system.removeprefix("full-")
    if leg != "sparse":
        facts |= {"dimension": bundle["dimension"], "table": bundle["tables"][settings["task"]]}
    if leg != "dense":
        sparse = bundle["sparse"]
        facts |= {"vocabulary": sparse["vocabulary"], "impacts": sparse["impacts"]}
        facts |= {key: sparse[key] for key in ("language", "k1", "b", "token_factor") if sparse.get(key) is not None}
        facts |= {"expansion": sparse.get("expansion"), "top_k": sparse["top_k"]}
        facts |= {"query_weights": sparse["query_weights"]}
        facts |= {"postings_per_query": round(report["postings_per_query"][system], 1)}
    if leg.startswith("hybrid"):
        facts |= {"fusion": settings["fusion"][leg], "candidates": settings["candidates"]}
    if system.startswith("full-"):
        facts |= {"query_model": settings["query_model"]}
    elif heads := bundle.get("head_queries"):
        facts |= {"head_queries": heads[settings["task"]]}
    if unanswered := report["queries_without_answer"].get(system):
        facts |= {"queries_without_answer": len(unanswered)}
    return facts


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
    """Put rows of one dataset into the file of results, in place of those of the same system and dataset.

    `values` has, by system, the nDCG@10 of every query. Waits for another process that is writing. Raises RecipeError
    when the file is something else, or holds the dataset with other queries.
    """
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


def typed_command(arguments: Sequence[str]) -> str:
    """A command line as it was typed, program first, with every path cut to its last name.

    Where somebody's folders lie says nothing about a result.
    """
    return shlex.join(_without_folders(argument) for argument in arguments)


def _without_folders(argument: str) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    return f"{option}{equals}{Path(value).name if '/' in value else value}"


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
