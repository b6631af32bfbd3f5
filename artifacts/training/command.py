"""The command `lightretriever train`; torch is loaded when it runs."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from lightretriever.artifacts.cli.runner import Job, JsonOption, next_command, offline
from lightretriever.artifacts.cli.summary import ErrorInfo, TrainSummary, folder_size
from lightretriever.artifacts.errors import MissingExtraError, RecipeError
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.training.launch import launch, launched
from lightretriever.artifacts.training.recipe import TrainRecipe, load_train_recipe

__all__ = ["train"]


def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="The training recipe, a YAML file.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="Hugging Face id, directory or .gguf (model.path).")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that the recipe's relative paths of sets are in.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … (model.device).")] = None,
    work: Annotated[Path | None, typer.Option(help="Directory of checkpoints, log and prepared data (work).")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the trained adapter (output).")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after so many minutes, with a checkpoint.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that share each batch (default: one per GPU, or one).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train an adapter; the same command goes on with a run that was stopped."""
    first, worker = os.environ.get("RANK", "0") == "0", "LOCAL_RANK" in os.environ
    with offline("train", as_json=as_json, quietly=worker) as job, launched() if worker else nullcontext():
        options = {"model.path": model, "model.device": device, "work": work, "output": output}
        loaded = load_train_recipe(
            recipe, {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
        )
        loaded = loaded if data is None else loaded.below(data)
        count = processes or _gpus(loaded)
        error = _in_processes(count) if count > 1 and not worker else None
        if error is not None:
            job.fail(error)
        elif count == 1 or worker:
            _run(job, loaded, count, minutes, first)
        if isinstance(job.summary, TrainSummary):
            build = next_command(context, "build", "RECIPE", "--adapter", loaded.output, shared=("model", "device"))
            job.summary.next = build if job.summary.finished else next_command(context, "train", recipe)
    if error is not None:
        raise typer.Exit(error.status)


def _in_processes(count: int) -> ErrorInfo | None:
    """Have this very command run in several processes; returns the error of the one that failed first."""
    try:
        return launch(count)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error) from error


def _run(job: Job, recipe: TrainRecipe, count: int, minutes: float | None, first: bool) -> None:
    """Train in this process, the first of all or another one."""
    _check(recipe, count)
    with work_lock(recipe.work) if first else nullcontext():
        done = _train(recipe, minutes)
        if first:
            job.summary = _summary(recipe, done)


def _train(recipe: TrainRecipe, minutes: float | None) -> bool:
    try:
        from lightretriever.artifacts.training.loop import train as run
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error) from error
    return run(recipe, minutes=minutes)


def _summary(recipe: TrainRecipe, finished: bool) -> TrainSummary:
    from lightretriever.artifacts.training.checkpoint import read_progress
    from lightretriever.artifacts.training.data import data_report

    stands = read_progress(recipe.work / "checkpoint.safetensors")
    files, size = folder_size(recipe.output) if finished else (0, 0)
    return TrainSummary(
        command="train",
        path=str(recipe.output),
        finished=finished,
        work=str(recipe.work),
        pairs=sum(row["kept"] for row in data_report(recipe)),
        steps=sum(stage.steps for stage in recipe.stages),
        steps_done=sum(stage.steps for stage in recipe.stages[: stands.stage]) + stands.step,
        best=stands.best,
        best_step=stands.best_step,
        training_seconds=round(stands.elapsed_s, 3),
        files=files,
        bytes=size,
    )


def _check(recipe: TrainRecipe, count: int) -> None:
    """Raise RecipeError for a batch that can't be shared among `count` processes."""
    for stage in recipe.stages:
        if stage.batch_size < count:
            raise RecipeError(
                f"batch_size is {stage.batch_size}, but {count} processes share a batch.",
                remedy="Raise batch_size, or lower --processes.",
            )


def _gpus(recipe: TrainRecipe) -> int:
    """Processes that a run without --processes has: one per GPU when the device is left open, else one."""
    if recipe.model.device not in {"auto", "cuda"}:
        return 1
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error) from error
    return max(1, torch.cuda.device_count())
