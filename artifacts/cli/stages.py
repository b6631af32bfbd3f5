"""The stages that several commands run: the modules that need torch, or Ray, are imported here, when a command runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from lightretriever.artifacts.cli.runner import next_command, report_skipped
from lightretriever.artifacts.cli.summaries import bundle_summary
from lightretriever.artifacts.cli.summary import BundleSummary
from lightretriever.artifacts.errors import MissingExtraError
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.build import build_bundle
from lightretriever.artifacts.pipeline.recipe import Recipe

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encode import Encoding

__all__ = ["make_tables", "ray_encoding", "torch_stages", "write_bundle"]


def torch_stages() -> Any:
    """Import `artifacts.pipeline.stages`, which needs torch. MissingExtraError where it is not installed."""
    try:
        from lightretriever.artifacts.pipeline import stages
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error) from error
    return stages


def ray_encoding(recipe: Recipe, address: str) -> "Encoding":
    """Encode the corpus on the Ray cluster at an address. MissingExtraError where Ray is not installed."""
    torch_stages()
    try:
        from lightretriever.artifacts.pipeline.on_ray import encode_on_ray
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error, "ray") from error
    return encode_on_ray(recipe, address)


def make_tables(recipe: Recipe) -> dict[str, Path]:
    """Make the token table of every task; task name to file (V, H) float32."""
    stages = torch_stages()
    with work_lock(recipe.work):
        tables: dict[str, Path] = stages.run_tables(recipe, stages.load_recipe_encoders(recipe))
        return tables


def write_bundle(
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
