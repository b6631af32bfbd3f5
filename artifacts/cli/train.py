"""The command `lightretriever train`; torch is loaded when it runs."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from lightretriever.artifacts.cli.options import DeviceOption, ModelOption, overridden
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.errors import RecipeError, importing
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.summary import Summary, Text, duration, folder_size, megabytes
from lightretriever.artifacts.training.recipe import TrainRecipe

__all__ = ["TrainSummary", "train"]


class TrainSummary(Summary):
    """Of `train`: `path` is the adapter's folder, `work` that of the run. A run that was `finished` has done all
    `steps`; `best` is the best development score, after `best_step` of them. `training_seconds` are those of all
    slices, `files` and `bytes` the adapter's."""

    command: Literal["train"] = "train"
    finished: bool
    work: Text
    pairs: int
    steps: int
    steps_done: int
    best: float | None
    best_step: int | None
    training_seconds: float
    files: int
    bytes: int

    def made(self) -> Iterator[str]:
        """One line, and one for the development score."""
        pairs = f"{self.pairs:,} pairs, " if self.pairs else ""
        spent = f"{pairs}{duration(self.training_seconds)} of training in all"
        if self.finished:
            yield f"{self.path}: adapter, {self.files} files, {megabytes(self.bytes)}"
            yield f"{self.steps:,} steps, {spent}"
        else:
            yield f"{self.work}: stopped in time, {self.steps_done:,} of {self.steps:,} steps, {spent}"
        if self.best is not None:
            yield f"best development score: {self.best:.4f}, after step {self.best_step} of {self.steps:,}"


def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="The training recipe, a YAML file.", show_default=False)],
    model: ModelOption = None,
    teacher: Annotated[
        str | None, typer.Option(help="Hugging Face id or directory of the bi-encoder (teacher.path).")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that the recipe's relative paths of sets are in.")] = None,
    device: DeviceOption = None,
    work: Annotated[Path | None, typer.Option(help="Directory of checkpoints, log and prepared data (work).")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the trained adapter (output).")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after so many minutes, with a checkpoint.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train an adapter, or resume a stopped run. Start several processes by torchrun or accelerate."""
    first = os.environ.get("RANK", "0") == "0"
    with running("train", as_json=as_json, quietly=not first) as job:
        loaded = overridden(context, TrainRecipe).below(data or Path())
        _check(loaded, int(os.environ.get("WORLD_SIZE", "1")))
        with importing("pipeline"):
            from lightretriever.artifacts.training.loop import train as run
        with work_lock(loaded.work) if first else nullcontext():
            finished = run(loaded, minutes=minutes, open_searcher=context.obj)
            if first:
                job.summary = _summary(loaded, finished)
                build = next_command(context, "build", "RECIPE", "--adapter", loaded.output, shared=("model", "device"))
                job.summary.next = build if finished else next_command(context, "train", recipe)


def _summary(recipe: TrainRecipe, finished: bool) -> TrainSummary:
    from lightretriever.artifacts.training.data import data_report
    from lightretriever.artifacts.training.run import read_progress

    stands = read_progress(recipe.work)
    files, size = folder_size(recipe.output) if finished else (0, 0)
    return TrainSummary(
        path=str(recipe.output),
        finished=finished,
        work=str(recipe.work),
        pairs=sum(row["kept"] for row in data_report(recipe)) if recipe.needs_pairs else 0,
        steps=sum(stage.steps for stage in recipe.stages),
        steps_done=sum(stage.steps for stage in recipe.stages[: stands.stage]) + stands.step,
        best=stands.best,
        best_step=stands.best_step,
        training_seconds=round(stands.elapsed_s, 3),
        files=files,
        bytes=size,
    )


def _check(recipe: TrainRecipe, processes: int) -> None:
    """Raise RecipeError for a batch that can't be shared among the processes."""
    for stage in recipe.stages:
        if stage.batch_size < processes:
            raise RecipeError(
                f"batch_size is {stage.batch_size}, but {processes} processes share a batch.",
                remedy="Raise batch_size, or start fewer processes.",
            )
