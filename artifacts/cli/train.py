"""The command `lightretriever train`; torch is loaded when it runs."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from time import time
from typing import Annotated

import typer

from lightretriever.artifacts.cli.runner import DeviceOption, JsonOption, ModelOption, overridden, running
from lightretriever.artifacts.errors import LightRetrieverError, importing
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.reports import Summary, duration, folder_size, megabytes
from lightretriever.artifacts.training.recipe import TrainRecipe


def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="The training recipe, a YAML file.", show_default=False)],
    model: ModelOption = None,
    data: Annotated[Path | None, typer.Option(help="Folder that the recipe's relative paths of sets are in.")] = None,
    device: DeviceOption = None,
    work: Annotated[Path | None, typer.Option(help="Directory of checkpoints, log and prepared data (work).")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the trained adapter (output).")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after so many minutes, with a checkpoint.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train an adapter, or resume a stopped run. Start several processes by torchrun or accelerate."""
    first = os.environ.get("RANK", "0") == "0"
    try:
        with running("train", as_json=as_json, quietly=not first) as job:
            loaded = overridden(context, TrainRecipe, data)
            with importing("pipeline"):
                from lightretriever.artifacts.training.loop import train as run
            with work_lock(loaded.work) if first else nullcontext():
                finished = run(loaded, minutes=minutes, open_searcher=context.obj)
                if first:
                    job.summary = _summary(loaded, finished)
    except LightRetrieverError as error:
        _report(error)
        raise


def _report(error: LightRetrieverError) -> None:
    """Write an error where torchrun looks for it, whose own report then ends with it."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": str(error), "extraInfo": {"timestamp": str(int(time()))}}
        Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")


def _summary(recipe: TrainRecipe, finished: bool) -> Summary:
    from lightretriever.artifacts.training.data import data_report
    from lightretriever.artifacts.training.run import read_progress

    stands, pairs = read_progress(recipe.work), sum(row["kept"] for row in data_report(recipe))
    steps = sum(stage.steps for stage in recipe.stages)
    done = sum(stage.steps for stage in recipe.stages[: stands.stage]) + stands.step
    files, size = folder_size(recipe.output) if finished else (0, 0)
    lines = [f"{recipe.output}: adapter, {files} files, {megabytes(size)}"] if finished else [f"{recipe.work}: stopped"]
    lines += [f"{done:,} of {steps:,} steps, {pairs:,} pairs, {duration(stands.elapsed_s)} of training in all"]
    if stands.best is not None:
        lines += [f"best development score: {stands.best:.4f}, after step {stands.best_step} of {steps:,}"]
    facts = {"finished": finished, "work": str(recipe.work), "pairs": pairs, "steps": steps, "steps_done": done}
    facts |= {"best": stands.best, "best_step": stands.best_step, "training_seconds": round(stands.elapsed_s, 3)}
    return Summary(str(recipe.output), lines, facts | {"files": files, "bytes": size})
