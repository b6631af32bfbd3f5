"""What the commands that make a bundle of a recipe share.

Torch is imported when a command needs it: `index` works without.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lightretriever.artifacts.cli.runner import next_command, report_skipped
from lightretriever.artifacts.errors import importing
from lightretriever.artifacts.files.workdir import read_json, work_lock
from lightretriever.artifacts.pipeline.build import BundleSummary, build_bundle, refined_folder
from lightretriever.artifacts.pipeline.encoded import TextStore, encoded_corpus
from lightretriever.artifacts.pipeline.head import head_files
from lightretriever.artifacts.pipeline.recipe import Recipe

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.stages import TablesSummary

__all__ = ["make_tables", "next_stage", "torch_stages", "write_recipe_bundle"]


def torch_stages() -> Any:
    """Import `artifacts.pipeline.stages`, which needs torch. MissingExtraError where it is not installed."""
    with importing("pipeline"):
        from lightretriever.artifacts.pipeline import stages
    return stages


def make_tables(recipe: Recipe) -> "TablesSummary":
    """Make the token table of every task."""
    stages = torch_stages()
    with work_lock(recipe.work):
        tables: TablesSummary = stages.run_tables(recipe, stages.load_recipe_encoders(recipe))
        return tables


def write_recipe_bundle(context: typer.Context, recipe: Recipe, overwrite: bool) -> BundleSummary:
    """Build the indexes and write the bundle. Print on stderr how much of the corpus was left out."""
    summary = build_bundle(recipe, overwrite=overwrite)
    report_skipped(encoded_corpus(recipe).skipped, cut=summary.cut)
    if recipe.head is None and any((recipe.work / "tables" / task / "head").is_dir() for task in recipe.tasks):
        unused = f"{recipe.work} has head queries, which this recipe leaves out: it has no section head"
        typer.echo(f"{unused} (or --head-queries)", err=True)
    summary.next = next_command(context, "verify", recipe.output)
    return summary


def next_stage(recipe: Recipe) -> str:
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
