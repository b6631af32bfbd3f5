"""The commands that make a bundle of a recipe: `build`, and its stages by themselves.

Modules that need an extra are imported when a command runs: `index` works without any.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import (
    AdapterOption,
    CorpusOption,
    DeviceOption,
    DimensionOption,
    HeadOption,
    LimitOption,
    ModelOption,
    OutputOption,
    OverwriteOption,
    PartOption,
    RayOption,
    RecipeArgument,
    SkipOption,
    TopKOption,
    TopOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, next_command, report_skipped, running
from lightretriever.artifacts.cli.summaries import bundle_summary, encode_summary, next_stage, tables_summary
from lightretriever.artifacts.cli.summary import BundleSummary
from lightretriever.artifacts.errors import MissingExtraError, RecipeError
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.build import build_bundle, check_before_build
from lightretriever.artifacts.pipeline.encoded import Part, encoded_corpus
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.terms import rank_by_bm25

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encode import Encoding

__all__ = ["build", "distil_table", "encode", "index", "refine", "table"]


def build(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    output: OutputOption = None,
    limit: LimitOption = None,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """All of it in one go: token tables, corpus encoding, indexes, bundle."""
    with running("build", as_json=as_json) as job:
        loaded = recipe_of(context)
        stages = _torch_stages()
        check_before_build(loaded, overwrite=overwrite)
        with work_lock(loaded.work):
            encoded_corpus(loaded)  # so that a bad line is found before the models are loaded
            encoders = stages.load_recipe_encoders(loaded)
            if not loaded.biencoder:
                stages.run_tables(loaded, encoders)
            encoding = stages.run_encode(loaded, encoders)
            if loaded.biencoder:  # whose tables may be fitted to the encoded corpus
                stages.run_tables(loaded, encoders, encoding)
            if loaded.refine is not None:
                for line in tables_summary("refine", loaded, stages.run_refine(loaded)).made():
                    typer.echo(line, err=True)
            bundle = _write_bundle(context, "build", loaded, overwrite)
            job.summary = bundle.model_copy(update={**encoding.counts._asdict(), "doubtful": encoding.doubtful})
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


def table(
    context: typer.Context,
    recipe: RecipeArgument,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the token table of every task: one row per token of the vocabulary."""
    with running("table", as_json=as_json) as job:
        loaded = recipe_of(context)
        tables = _make_tables(loaded)
        job.summary = tables_summary("table", loaded, tables)
        job.summary.next = next_command(context, next_stage(loaded), recipe)


def distil_table(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    limit: LimitOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the token table of a bi-encoder: the general one or, with `distil`, one that is fitted to the corpus."""
    with running("distil-table", as_json=as_json) as job:
        loaded = recipe_of(context)
        if not loaded.biencoder:
            raise RecipeError(
                f"{recipe}: model.path: {loaded.model.path} is no folder of sentence-transformers.",
                remedy="Run `table`, or for a bi-encoder add the section `distil: {}`.",
            )
        job.summary = tables_summary("distil-table", loaded, _make_tables(loaded))
        job.summary.next = next_command(context, next_stage(loaded), recipe)


def encode(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    work: WorkOption = None,
    limit: LimitOption = None,
    part: PartOption = None,
    ray: RayOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Encode the corpus with the full LLM: texts that were encoded before are kept."""
    with running("encode", as_json=as_json) as job:
        loaded, own = recipe_of(context), None if part is None else Part.parse(part)
        _check_shared(loaded, part, ray)
        if ray is not None:
            encoding = _ray_encoding(loaded, ray)
        else:
            stages = _torch_stages()
            with work_lock(loaded.work, shared=own is not None):
                encoding = stages.run_encode(loaded, stages.load_recipe_encoders(loaded), own)
        job.summary = encode_summary(encoding)
        report_skipped(encoding.skipped, cut=job.summary.cut)
        missing = encoding.store.missing_parts()
        if missing:
            context.params["part"] = missing[0]
        job.summary.next = next_command(context, "encode" if missing else next_stage(loaded), recipe)


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


def refine(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    work: WorkOption = None,
    limit: LimitOption = None,
    dimension: DimensionOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the token tables on the encoded corpus, without the model (a recipe with `refine`)."""
    with running("refine", as_json=as_json) as job:
        loaded = recipe_of(context)
        stages = _torch_stages()
        with work_lock(loaded.work):
            tables = stages.run_refine(loaded)
        job.summary = tables_summary("refine", loaded, tables)
        job.summary.next = next_command(context, next_stage(loaded), recipe)


def index(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    output: OutputOption = None,
    limit: LimitOption = None,
    dimension: DimensionOption = None,
    top_k: TopKOption = None,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the Faiss and Lucene indexes from the encoded corpus and write the bundle. Needs no torch."""
    with running("index", as_json=as_json) as job:
        loaded = recipe_of(context)
        with work_lock(loaded.work):
            job.summary = _write_bundle(context, "index", loaded, overwrite)


def _torch_stages() -> Any:
    """Import `artifacts.pipeline.stages`, which needs torch. MissingExtraError where it is not installed."""
    try:
        from lightretriever.artifacts.pipeline import stages
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error) from error
    return stages


def _ray_encoding(recipe: Recipe, address: str) -> "Encoding":
    """Encode the corpus on the Ray cluster at an address. MissingExtraError where Ray is not installed."""
    _torch_stages()
    try:
        from lightretriever.artifacts.pipeline.on_ray import encode_on_ray
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error, "ray") from error
    return encode_on_ray(recipe, address)


def _make_tables(recipe: Recipe) -> dict[str, Path]:
    """Make the token table of every task; task name to file (V, H) float32."""
    stages = _torch_stages()
    with work_lock(recipe.work):
        tables: dict[str, Path] = stages.run_tables(recipe, stages.load_recipe_encoders(recipe))
        return tables


def _write_bundle(
    context: typer.Context, command: Literal["index", "build"], recipe: Recipe, overwrite: bool
) -> BundleSummary:
    """Build the indexes and write the bundle. Print on stderr how much of the corpus was left out."""
    bundle, skipped = build_bundle(recipe, overwrite=overwrite)
    report_skipped(skipped, cut=bundle.manifest.corpus.cut)
    if recipe.head is None and any((recipe.work / "tables" / task / "head").is_dir() for task in recipe.tasks):
        unused = f"{recipe.work} has head queries, which this recipe leaves out: it has no section head"
        typer.echo(f"{unused} (or --head-queries)", err=True)
    summary = bundle_summary(command, bundle, skipped)
    summary.next = next_command(context, "verify", recipe.output)
    return summary
