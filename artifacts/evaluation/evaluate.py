"""Evaluation of a bundle on a test collection, through the very engine that serves it.

Systems: `dense` and `sparse` alone, `hybrid` with the bundle's fusion, and `bm25`, Lucene's own on the words of the
bundle's documents; with a query model, also `full-dense`, `full-sparse` and `full-hybrid`, whose queries are encoded by
that whole model instead of the token table. `hybrid-paper`, with the paper's min-max fusion, is run where it is named.
A bundle without a dense leg has `sparse` and `bm25` alone.

A benchmark has several test collections, each evaluated with its own bundle, and the mean over all:

    COLLECTIONS/scifact/            COLLECTIONS/cqadupstack/android/, …/english/, …
    BUNDLES/scifact/                BUNDLES/cqadupstack/android/, …

A folder of collections, as CQADupStack is one of twelve forums, counts as one collection: the mean of its parts.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import FusionInfo, LegWeights, Manifest, check_outside
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, has_file
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.full import FullQueries, by_likelihood, encode_fully
from lightretriever.artifacts.evaluation.report import describe_bundle, environment
from lightretriever.artifacts.evaluation.runs import (
    JudgedQueries,
    measure,
    qrels_file,
    read_judged,
    relevant_but_missing,
    without_own,
    write_run,
)
from lightretriever.artifacts.evaluation.searching import Fusion, OpenSearcher
from lightretriever.artifacts.evaluation.systems import (
    BM25,
    DEPTH,
    LIKELIHOOD,
    PAPER_FUSION,
    Searches,
    run_bm25,
    run_systems,
)
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.artifacts.signals import commit_point

REPORT_FILE: Final = "evaluation.json"
_NAMED: Final = 10  # ids named in a warning


def evaluate_bundle(
    open_searcher: OpenSearcher,
    bundle_path: Path,
    dataset: Path,
    output: Path,
    *,
    split: str = "test",
    task: str | None = None,
    only: Collection[str] | None = None,
    query_model: ModelRecipe | None = None,
    drop_own: bool = False,
    depth: int = DEPTH,
) -> dict[str, Any]:
    """Search with every judged query of DATASET/qrels/SPLIT.tsv and take the measures of `runs`.

    `depth` hits are kept per query, and proposed by each leg for the fusion. `only` names the systems to run (None:
    all). With `drop_own`, a hit whose id is the query's is dropped. Writes the report, `evaluation.json`, and one TREC
    run file per system, SYSTEM.trec, to the folder `output`, and returns the report. A signal stops the command before
    it writes, or not at all. Judged documents that the bundle lacks count as not found, and cause a warning.

    Raises BundleError for a bundle or a task that can't be used and for an `output` inside a bundle, CorpusError for a
    dataset that can't be read or has nothing in common with the bundle, RecipeError for impossible settings, ModelError
    for an impossible query model.
    """
    if depth < DEPTH:
        raise RecipeError(f"depth is {depth}; R@100 needs {DEPTH} hits.", remedy=f"Give {DEPTH} or more.")
    check_outside(output / REPORT_FILE)
    bundle = Bundle.open(bundle_path)
    task = task or bundle.manifest.default_task
    bundle.task(task)
    judged = read_judged(dataset, split)
    fusion, queries = fusion_of(bundle.manifest), list(judged.queries.values())
    full: FullQueries | None = None
    warnings: list[str] = []
    if query_model is not None:
        full, warnings = encode_fully(query_model, bundle, task, queries)
    searches = Searches(task, fusion, only, full, bundle.manifest.dense is not None, depth)
    searches.wanted()  # an impossible choice is an error before anything is searched
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    with bundle.sparse() as index:
        missing = relevant_but_missing(judged, set(index.ids()))
        with open_searcher(bundle) as searcher:
            runs, unanswered = run_systems(searcher, judged, searches)
        if "bm25" in searches.wanted():
            runs["bm25"] = run_bm25(index, judged, output, depth)
        if query_model is not None and LIKELIHOOD in searches.wanted():
            runs[LIKELIHOOD] = by_likelihood(query_model, bundle, index, judged.queries, runs["hybrid"])
    if drop_own:
        runs = {system: without_own(run) for system, run in runs.items()}
    report = {
        "bundle": describe_bundle(bundle),
        "dataset": _describe_dataset(dataset, split, judged, missing),
        "settings": _describe_settings(searches, query_model) | ({"drop_own": True} if drop_own else {}),
        "metrics": {system: measure(judged.qrels, run, depth) for system, run in runs.items()},
        "queries_without_answer": unanswered,
        "runs": {system: f"{system}.trec" for system in runs},
        "warnings": [*warnings, *_warnings(bundle, dataset, judged, missing, unanswered)],
        "environment": environment(),
    }
    commit_point()  # runs and report are of one evaluation
    for system, run in runs.items():
        write_run(output / f"{system}.trec", run, tag="-".join([*bundle.manifest.name.split(), system]))
    write_atomically(output / REPORT_FILE, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
    return report


def fusion_of(manifest: Manifest) -> Fusion:
    """The fusion that the service uses for a bundle: its own, or else with the paper's weights; with the sparse leg's
    weight alone where there is no other."""
    if manifest.dense is None:
        return Fusion(LegWeights(sparse=1.0))
    fusion = manifest.fusion or FusionInfo(**PAPER_FUSION.weights.model_dump())
    return Fusion(
        LegWeights(dense=fusion.dense, sparse=fusion.sparse),
        normalization="range" if manifest.dense.background is None else "evidence",
        feedback=fusion.feedback,
    )


def _describe_settings(searches: Searches, model: ModelRecipe | None) -> dict[str, Any]:
    settings = {
        "task": searches.task,
        "depth": searches.depth,
        "candidates": searches.depth,
        "fusion": {"hybrid": searches.fusion.request()}
        | ({"hybrid-paper": PAPER_FUSION.request()} if "hybrid-paper" in searches.wanted() else {}),
        "bm25": BM25,
    }
    if model is not None:
        adapter = None if model.adapter is None else Path(model.adapter).name
        settings["query_model"] = {"name": Path(model.path).name, "adapter": adapter, "bos_token": model.bos_token}
    return settings


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
        "queries_without_judgments": judged.unjudged,
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
        sha256 = file_sha256(find_file(dataset, "corpus"))
    except CorpusError:
        return  # the bundle has its documents in itself; the corpus file is not needed
    if expected is not None and sha256 != expected:
        yield f"The bundle was made from another corpus file (SHA-256 {expected}) than {dataset} has ({sha256})."


def _some(ids: Iterable[str]) -> str:
    listed = list(ids)
    return ", ".join(listed[:_NAMED]) + (", …" if len(listed) > _NAMED else "")


Metrics = Mapping[str, Mapping[str, float]]


def is_benchmark(folder: Path) -> bool:
    """True if a folder has no queries itself, but folders below it have."""
    return not has_file(folder, "queries") and next(_collections(folder), None) is not None


def evaluate_all(
    evaluate: Callable[[Path, Path, Path], dict[str, Any]], bundles: Path, collections: Path, output: Path
) -> dict[str, Any]:
    """Evaluate BUNDLES/NAME on COLLECTIONS/NAME to OUTPUT/NAME, for each collection; `evaluate` takes these three.

    Writes and returns the report of OUTPUT/evaluation.json: the measures of each collection by system, and their
    `mean`, over the systems that all of them have. Raises CorpusError where a bundle is missing, before any search.
    """
    names = [path.relative_to(collections) for path in _collections(collections)]
    if missing := [name for name in names if not (bundles / name).is_dir()]:
        raise CorpusError(
            f"{bundles}: no bundle for {', '.join(map(str, missing))}.",
            remedy="Build one of each collection, in a folder of its name, or leave the collection out.",
        )
    reports = {str(name): evaluate(bundles / name, collections / name, output / name) for name in names}
    groups: dict[str, list[Metrics]] = {}
    for name in names:
        groups.setdefault(name.parts[0], []).append(reports[str(name)]["metrics"])
    rows = {name: _mean(parts) for name, parts in groups.items()}
    report = {
        "collections": rows,
        "parts": {name: report["metrics"] for name, report in reports.items()},
        "mean": _mean(list(rows.values())),
        "warnings": [warning for report in reports.values() for warning in report["warnings"]],
        "queries": sum(report["dataset"]["queries"] for report in reports.values()),
        "documents": sum(report["bundle"]["documents"] for report in reports.values()),
    }
    write_atomically(output / REPORT_FILE, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
    return report


def _collections(folder: Path) -> Iterator[Path]:
    """The folders below, at most two levels down, that have queries, by name."""
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if has_file(path, "queries"):
            yield path
        else:
            yield from sorted(part for part in path.iterdir() if part.is_dir() and has_file(part, "queries"))


def _mean(several: list[Metrics]) -> dict[str, dict[str, float]]:
    """The mean of each measure, of the systems that are in all."""
    systems = [name for name in several[0] if all(name in metrics for metrics in several)]
    return {
        system: {name: float(np.mean([metrics[system][name] for metrics in several])) for name in several[0][system]}
        for system in systems
    }
