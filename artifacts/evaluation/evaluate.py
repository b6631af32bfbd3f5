"""Evaluation of a bundle on a test collection, through the very engine that serves it.

Systems: `dense` and `sparse` alone, `hybrid` with the bundle's fusion, and `bm25`, Lucene's own on the documents'
words; with a query model, also `full-dense`, `full-sparse` and `full-hybrid`, whose queries that whole model encodes.
Where they are named: `hybrid-paper`, with the paper's min-max fusion, and `hybrid-likelihood`, the hits of `hybrid`
ordered by the query model's log P(q | d).

A benchmark has several test collections, each evaluated with its own bundle, and the mean over all:

    COLLECTIONS/scifact/            COLLECTIONS/cqadupstack/android/, …/english/, …
    BUNDLES/scifact/                BUNDLES/cqadupstack/android/, …

A folder of collections, as CQADupStack is one of twelve forums, counts as one collection: the mean of its parts.
"""

import json
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from lightretriever.artifacts.bundle.manifest import FusionInfo, LegWeights, Manifest, check_outside
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, has_file
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.bm25 import BM25, run_bm25
from lightretriever.artifacts.evaluation.full import FullQueries, by_likelihood, encode_fully
from lightretriever.artifacts.evaluation.runs import (
    JudgedQueries,
    Ranking,
    measure,
    qrels_file,
    ranking,
    read_judged,
    relevant_but_missing,
    without_own,
    write_run,
)
from lightretriever.artifacts.evaluation.searching import Fusion, OpenSearcher, Searcher, SearchMode
from lightretriever.artifacts.files.atomic import writing
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.artifacts.reports import ProgressBar, generator, package_version
from lightretriever.artifacts.signals import commit_point

REPORT_FILE: Final = "evaluation.json"
DEPTH: Final = 100
"""Hits of a query that are kept, where nothing else is asked for."""

PAPER_FUSION: Final = Fusion(LegWeights(dense=0.7, sparse=0.3), normalization="paper")
LIKELIHOOD: Final = "hybrid-likelihood"
SYSTEMS: Final = (
    *("dense", "sparse", "hybrid", "hybrid-paper", LIKELIHOOD, "full-dense", "full-sparse", "full-hybrid", "bm25"),
)
"""In the order of the report."""

ON_REQUEST: Final = ("hybrid-paper", LIKELIHOOD)
"""Those that are run only where they are named."""

_NAMED: Final = 10  # ids named in a warning
_DESCRIBED: Final = {"name", "created", "model", "corpus", "documents", "dimension", "vocab_size"} | {
    *("tasks", "dense", "sparse"),
}
"""The facts of a bundle that its results depend on; `digest` stands for every byte of it."""

_PACKAGES: Final = ("faiss-cpu", "ir-measures", "numpy", "pyserini", "pytrec-eval-terrier", "tokenizers")


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

    `depth` hits are kept per query, and proposed by each leg. `only` names the systems to run. With `drop_own`, a hit
    whose id is the query's is dropped. Judged documents that the bundle lacks count as not found. Returns the report,
    and writes it to OUTPUT/evaluation.json, with a run file of each system, SYSTEM.trec. A signal stops the command
    before it writes, or not at all.

    Raises BundleError for a bundle, task or `output` that can't be used, CorpusError for a dataset that can't be read
    or is of another corpus, RecipeError for impossible settings, ModelError for an impossible query model.
    """
    if depth < DEPTH:
        raise RecipeError(f"depth is {depth}; R@100 needs {DEPTH} hits.", remedy=f"Give {DEPTH} or more.")
    check_outside(output / REPORT_FILE)
    bundle = Bundle.open(bundle_path)
    task = task or bundle.manifest.default_task
    bundle.task(task)
    judged = read_judged(dataset, split)
    full, warnings = None, list[str]()
    if query_model is not None:
        full, warnings = encode_fully(query_model, bundle, task, list(judged.queries.values()))
    systems = chosen_systems(only, full, dense=bundle.manifest.dense is not None)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    with bundle.sparse() as index:
        missing = relevant_but_missing(judged, set(index.ids()))
        with open_searcher(bundle) as searcher:
            runs, unanswered = run_systems(searcher, judged, systems, task, full=full, depth=depth)
        if "bm25" in systems:
            runs["bm25"] = run_bm25(index, judged.queries, output, depth)
        if query_model is not None and LIKELIHOOD in systems:
            runs[LIKELIHOOD] = by_likelihood(query_model, bundle, index, judged.queries, runs["hybrid"])
    if drop_own:
        runs = {system: without_own(run) for system, run in runs.items()}
    report = {
        "bundle": bundle.manifest.model_dump(include=_DESCRIBED) | {"digest": bundle.manifest.digest},
        "dataset": _describe_dataset(dataset, split, judged, missing),
        "settings": {
            "task": task,
            "depth": depth,
            "candidates": depth,
            "fusion": {"hybrid": fusion_of(bundle.manifest).request(), "hybrid-paper": PAPER_FUSION.request()},
            "bm25": BM25,
            "query_model": query_model and _describe_model(query_model),
            "drop_own": drop_own,
        },
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


def environment() -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": generator(),
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    """The processor's name as Linux knows it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def fusion_of(manifest: Manifest) -> Fusion:
    """The fusion that the service uses for a bundle: its own, or else the paper's weights, or the sparse leg alone."""
    if manifest.dense is None:
        return Fusion(LegWeights(sparse=1.0))
    fusion = manifest.fusion or FusionInfo(**PAPER_FUSION.weights.model_dump())
    return Fusion(
        LegWeights(dense=fusion.dense, sparse=fusion.sparse),
        normalization="range" if manifest.dense.background is None else "evidence",
        feedback=fusion.feedback,
    )


def chosen_systems(only: Collection[str] | None, full: FullQueries | None, *, dense: bool) -> list[str]:
    """The SYSTEMS to run, in order: `only` these (None: all that can be run but ON_REQUEST). Without `dense`, the
    bundle has no dense leg.

    Raises RecipeError for one that is unknown, or needs a query model or a dense leg.
    """
    possible = [name for name in SYSTEMS if not name.startswith("full-") or (full and full.gives(name))]
    if not (full and full.sparse):
        possible.remove(LIKELIHOOD)
    if not dense:
        possible = [name for name in possible if name in ("sparse", "full-sparse", "bm25")]
    if only is None:
        return [name for name in possible if name not in ON_REQUEST]
    if impossible := sorted(set(only) - set(possible)):
        raise RecipeError(
            f"{', '.join(impossible)}: no system that can be run here.",
            remedy=f"Use some of {', '.join(possible)}; the full- ones need --query-model, and dense and hybrid a "
            "dense leg.",
        )
    return [name for name in possible if name in only or (name == "hybrid" and LIKELIHOOD in only)]


def run_systems(
    light: Searcher,
    judged: JudgedQueries,
    systems: Collection[str],
    task: str,
    *,
    full: FullQueries | None = None,
    depth: int = DEPTH,
) -> tuple[dict[str, dict[str, Ranking]], dict[str, list[str]]]:
    """Search with every judged query by those of the `systems` that the engine has; `light` encodes it without a
    model. Each leg proposes `depth` candidates, and as many hits are kept.

    Returns by system its run, and the queries that it had to leave unanswered.
    """
    runs, unanswered = dict[str, dict[str, Ranking]](), dict[str, list[str]]()
    searched = [system for system in systems if system not in ("bm25", LIKELIHOOD)]
    whole = light if full is None else full.searcher(light, task)
    with ProgressBar("evaluate", total=len(judged.queries) * len(searched), unit="queries") as progress:
        for system in searched:
            searcher = whole if system.startswith("full-") else light
            run = runs[system] = {}
            mode = cast(SearchMode, system.removeprefix("full-").removesuffix("-paper"))
            fusion = PAPER_FUSION if system == "hybrid-paper" else None
            for query_id, text in judged.queries.items():
                hits = searcher.search(text, task=task, mode=mode, k=depth, candidates=depth, fusion=fusion)
                if hits is None:
                    unanswered.setdefault(system, []).append(query_id)
                else:
                    run[query_id] = ranking(hits)
                progress.advance(1)
    return runs, unanswered


def _describe_model(model: ModelRecipe) -> dict[str, Any]:
    adapter = None if model.adapter is None else Path(model.adapter).name
    return {"name": Path(model.path).name, "adapter": adapter, "bos_token": model.bos_token}


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


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")


Metrics = Mapping[str, Mapping[str, float]]


def is_benchmark(folder: Path) -> bool:
    """True if a folder has no queries itself, but folders below it have."""
    return not has_file(folder, "queries") and next(_collections(folder), None) is not None


def evaluate_all(
    evaluate: Callable[[Path, Path, Path], dict[str, Any]], bundles: Path, collections: Path, output: Path
) -> dict[str, Any]:
    """Evaluate BUNDLES/NAME on COLLECTIONS/NAME to OUTPUT/NAME, for each collection; `evaluate` takes these three.

    Writes and returns the report of OUTPUT/evaluation.json: the measures of each collection by system, and as `metrics`
    their mean, over the systems that all of them have. Raises CorpusError where a bundle is missing, before any search.
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
    counts = {
        key: sum(report["dataset"][key] for report in reports.values())
        for key in ("queries", "queries_without_judgments")
    }
    split = reports[str(names[0])]["dataset"]["split"]
    report = {
        "dataset": {"name": collections.resolve().name, "split": split, **counts},
        "bundle": {"documents": sum(report["bundle"]["documents"] for report in reports.values())},
        "settings": {"task": "each bundle's"},
        "collections": rows,
        "parts": {name: report["metrics"] for name, report in reports.items()},
        "metrics": _mean(list(rows.values())),
        "runs": {f"{name}/{run}": f"{name}/{file}" for name in reports for run, file in reports[name]["runs"].items()},
        "warnings": [warning for report in reports.values() for warning in report["warnings"]],
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
