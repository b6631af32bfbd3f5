"""The command `lightretriever train`; torch is loaded when it runs."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from artifacts.errors import MissingExtraError, RecipeError
from artifacts.training.recipe import TrainRecipe, load_train_recipe
from artifacts.work import work_lock

__all__ = ["train"]


def train(
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
) -> None:
    """Train an adapter; the same command goes on with a run that was stopped."""
    options = {"model.path": model, "model.device": device, "work": work, "output": output}
    loaded = load_train_recipe(
        recipe, {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    )
    loaded = loaded if data is None else loaded.below(data)
    count = processes or _gpus(loaded)
    if count > 1 and "LOCAL_RANK" not in os.environ:
        _launch(count)
    _check(loaded, count)
    first = os.environ.get("RANK", "0") == "0"
    with work_lock(loaded.work) if first else nullcontext():
        done = _train(loaded, minutes)
    if first:
        state = f"trained; adapter: {loaded.output}" if done else "stopped in time; the same command goes on"
        typer.echo(f"{loaded.name}: {state}", err=True)


def _train(recipe: TrainRecipe, minutes: float | None) -> bool:
    try:
        from artifacts.training.loop import train as run
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error) from error
    return run(recipe, minutes=minutes)


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


def _launch(count: int) -> NoReturn:
    """Become the launcher that runs this very command in `count` processes; signals to this process then reach it."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [*launcher, f"--nproc-per-node={count}", "-m", "service.cli", *sys.argv[1:]]
    os.execve(sys.executable, command, {"OMP_NUM_THREADS": "1", **os.environ})
