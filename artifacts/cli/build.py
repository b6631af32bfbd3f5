"""The commands that make a bundle of a recipe: `build`, and its stages by themselves.

Modules that need an extra are imported when a command runs: `index` works without any.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import OverwriteOption, RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, next_command, report_skipped, running
from lightretriever.artifacts.errors import RecipeError, importing
from lightretriever.artifacts.files.workdir import read_json, work_lock
from lightretriever.artifacts.pipeline.build import BundleSummary, build_bundle, check_before_build, refined_folder
from lightretriever.artifacts.pipeline.encoded import Part, TextStore, encoded_corpus
from lightretriever.artifacts.pipeline.head import head_files
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.terms import rank_by_bm25
from lightretriever.artifacts.signals import until_stopped

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encode import EncodeSummary
    from lightretriever.artifacts.pipeline.stages import TablesSummary

__all__ = ["build", "distil_table", "encode", "index", "refine", "table"]


@replacing("corpus", "model", "adapter", "device", "head_queries", "top", "work", "output", "limit", "skip_bad")
def build(
    context: typer.Context, recipe: RecipeArgument, overwrite: OverwriteOption = False, as_json: JsonOption = False
) -> None:
    """All of it in one go: token tables, corpus encoding, indexes, bundle."""
    with running("build", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        stages = _torch_stages()
        check_before_build(loaded, overwrite=overwrite)
        with work_lock(loaded.work):
            documents = len(encoded_corpus(loaded))  # a bad line is found before the models are loaded
            encoders = stages.load_recipe_encoders(loaded, documents)
            if not loaded.biencoder:
                stages.run_tables(loaded, encoders)
            encoded = stages.run_encode(loaded, encoders)
            if loaded.biencoder:  # whose tables may be fitted to the encoded corpus
                stages.run_tables(loaded, encoders, encoded=True)
            if loaded.refine is not None:
                for line in stages.run_refine(loaded).made():
                    typer.echo(line, err=True)
            job.summary = _write_bundle(context, loaded, overwrite)
            job.summary.reused, job.summary.encoded = encoded.reused, encoded.encoded
            job.summary.removed, job.summary.doubtful = encoded.removed, encoded.doubtful
            with until_stopped():
                _compare_with_bm25(context, loaded)


def _compare_with_bm25(context: typer.Context, recipe: Recipe) -> None:
    """Warn of a leg that finds documents by their own sentences much less well than BM25 does."""
    from lightretriever.artifacts.evaluation.tune import find_known_items

    bundle, corpus, index = Bundle.open(recipe.output), encoded_corpus(recipe), recipe.index
    vocabulary = bundle.vocabulary(bundle.tokenizer())

    def bm25(queries: Sequence[str], k: int) -> list[list[tuple[str, float]]]:
        return rank_by_bm25(corpus, vocabulary, queries, k, k1=index.k1, b=index.b)

    found = find_known_items(context.obj, bundle, bm25)
    if found is None:
        return
    ranks = ", ".join(f"{system} {value:.3f}" for system, value in found.mrr.items())
    typer.echo(f"{found.queries} documents searched for by a sentence of theirs, MRR@10: {ranks}", err=True)
    typer.echo(
        "BM25 is at its best there: a low value shows a leg that may hurt, not which weights are best.", err=True
    )
    fit = "fit the token table to this corpus (`distil: {}` in the recipe), or " if recipe.distil is None else ""
    for leg in found.weak:
        other = {"dense": f"{fit}set index.weights: {{sparse: 1}}", "sparse": "set index.vocabulary: words"}[leg]
        typer.echo(
            f"warning: the {leg} leg is weak for this corpus, and search ranks below BM25, nDCG@10 {found.difference}. "
            f"Choose the weights by judged queries (`lightretriever tune`), {other}.",
            err=True,
        )


@replacing("model", "adapter", "device", "head_queries", "top", "work")
def table(context: typer.Context, recipe: RecipeArgument, as_json: JsonOption = False) -> None:
    """Make the token table of every task: one row per token of the vocabulary."""
    with running("table", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        job.summary = _make_tables(loaded)
        job.summary.next = next_command(context, _next_stage(loaded), recipe)


@replacing("corpus", "model", "device", "head_queries", "top", "work", "limit", "skip_bad")
def distil_table(context: typer.Context, recipe: RecipeArgument, as_json: JsonOption = False) -> None:
    """Make the token table of a bi-encoder: the general one or, with `distil`, one that is fitted to the corpus."""
    with running("distil-table", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        if not loaded.biencoder:
            raise RecipeError(
                f"{recipe}: model.path: {loaded.model.path} is no folder of sentence-transformers.",
                remedy="Run `table`, or for a bi-encoder add the section `distil: {}`.",
            )
        job.summary = _make_tables(loaded)
        job.summary.next = next_command(context, _next_stage(loaded), recipe)


@replacing("corpus", "model", "adapter", "device", "work", "limit", "part", "ray", "skip_bad")
def encode(
    context: typer.Context,
    recipe: RecipeArgument,
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="I/N", help="Only every N-th shard from the I-th on, for N machines."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Encode on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Encode the corpus with the model; encoded texts of an earlier run are kept."""
    with running("encode", as_json=as_json) as job:
        loaded, own = overridden(context, Recipe), None if part is None else Part.parse(part)
        _check_shared(loaded, part, ray)
        if ray is not None:
            summary = _encode_on_ray(loaded, ray)
        else:
            stages = _torch_stages()
            with work_lock(loaded.work, shared=own is not None):
                summary = stages.run_encode(loaded, stages.load_recipe_encoders(loaded), own)
        with work_lock(loaded.work, shared=True):
            report_skipped(encoded_corpus(loaded, shared=True).skipped, cut=summary.cut)
            missing = TextStore(loaded.work / "encode").missing_parts()
        if missing:
            context.params["part"] = missing[0]
        summary.next = next_command(context, "encode" if missing else _next_stage(loaded), recipe)
        job.summary = summary


def _check_shared(recipe: Recipe, part: str | None, ray: str | None) -> None:
    """Raise RecipeError for what several processes can't do."""
    if part is not None and ray is not None:
        raise RecipeError(f"--part is {part} and --ray is {ray!r}.", remedy="Give one: Ray makes parts of its own.")
    shared = f"--part is {part}" if ray is None else f"--ray is {ray!r}"
    model, converted = recipe.model.path, recipe.work / "model" / "converted.json"
    if (part or ray) is not None and model.endswith(".gguf") and not converted.is_file():
        raise RecipeError(
            f"{shared}, but {model} is not converted yet, which one process has to do.", remedy="Run `table` first."
        )


@replacing("corpus", "work", "limit", "dimension", "skip_bad")
def refine(context: typer.Context, recipe: RecipeArgument, as_json: JsonOption = False) -> None:
    """Train the token tables on the encoded corpus, without the model (a recipe with `refine`)."""
    with running("refine", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        stages = _torch_stages()
        with work_lock(loaded.work):
            job.summary = stages.run_refine(loaded)
        job.summary.next = next_command(context, _next_stage(loaded), recipe)


@replacing("corpus", "head_queries", "top", "work", "output", "limit", "dimension", "top_k", "skip_bad")
def index(
    context: typer.Context, recipe: RecipeArgument, overwrite: OverwriteOption = False, as_json: JsonOption = False
) -> None:
    """Build the Faiss and Lucene indexes from the encoded corpus and write the bundle. Needs no torch."""
    with running("index", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        with work_lock(loaded.work):
            job.summary = _write_bundle(context, loaded, overwrite)


def _torch_stages() -> Any:
    """Import `artifacts.pipeline.stages`, which needs torch. MissingExtraError where it is not installed."""
    with importing("pipeline"):
        from lightretriever.artifacts.pipeline import stages
    return stages


def _encode_on_ray(recipe: Recipe, address: str) -> "EncodeSummary":
    """Encode the corpus on the Ray cluster at an address. MissingExtraError where Ray is not installed."""
    _torch_stages()
    with importing("ray"):
        from lightretriever.artifacts.pipeline.on_ray import encode_on_ray
    return encode_on_ray(recipe, address)


def _make_tables(recipe: Recipe) -> "TablesSummary":
    """Make the token table of every task."""
    stages = _torch_stages()
    with work_lock(recipe.work):
        tables: TablesSummary = stages.run_tables(recipe, stages.load_recipe_encoders(recipe))
        return tables


def _write_bundle(context: typer.Context, recipe: Recipe, overwrite: bool) -> BundleSummary:
    """Build the indexes and write the bundle. Print on stderr how much of the corpus was left out."""
    summary = build_bundle(recipe, overwrite=overwrite)
    report_skipped(encoded_corpus(recipe).skipped, cut=summary.cut)
    if recipe.head is None and any((recipe.work / "tables" / task / "head").is_dir() for task in recipe.tasks):
        unused = f"{recipe.work} has head queries, which this recipe leaves out: it has no section head"
        typer.echo(f"{unused} (or --head-queries)", err=True)
    summary.next = next_command(context, "verify", recipe.output)
    return summary


def _next_stage(recipe: Recipe) -> str:
    """The command of the first stage that is not done; `index`, where only the bundle is missing."""
    work = recipe.work
    files = [work / "tables" / task / "table.npy" for task in recipe.tasks]
    if recipe.head is not None:
        files += [head_files(recipe, task, sparse=False)[1] for task in recipe.tasks]
    if not all(file.is_file() for file in files):
        return "distil-table" if recipe.biencoder else "table"
    if not (work / "encode" / "corpus.json").is_file():
        return "encode"
    documents = TextStore(work / "encode").documents
    if recipe.refine is None:
        fitted = all(_fitted(work / "tables" / task, documents) for task in recipe.tasks)
        return "index" if fitted else "distil-table"
    return "index" if all(_fitted(refined_folder(recipe, task), documents) for task in recipe.tasks) else "refine"


def _fitted(folder: Path, documents: object) -> bool:
    """Whether a table is there, and was fitted to these documents or to none."""
    return (folder / "table.npy").is_file() and read_json(folder / "plan.json").get("documents", documents) == documents
