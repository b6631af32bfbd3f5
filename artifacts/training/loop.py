"""The training loop: the recipe's stages in order, in slices of time."""

import os
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.training.contrastive import Contrastive
from lightretriever.artifacts.training.data import train_queries
from lightretriever.artifacts.training.mixture import Mixture
from lightretriever.artifacts.training.processes import Processes
from lightretriever.artifacts.training.recipe import ContrastiveStage, RegressionStage, Stage, TrainRecipe
from lightretriever.artifacts.training.regression import Regression, fit_projection
from lightretriever.artifacts.training.run import Run
from lightretriever.artifacts.training.texts import TaughtTexts
from lightretriever.artifacts.training.token_rows import fit_rows
from lightretriever.artifacts.training.types import Batch, StepContext

__all__ = ["train"]

Objective: TypeAlias = Contrastive | Regression

# Stages draw from far apart places of the seeds' sequence.
_STAGE_SEED = 1_000_003


def train(recipe: TrainRecipe, *, minutes: float | None = None) -> bool:
    """Train the recipe's adapter, or go on with it; returns whether it is finished and written to `recipe.output`.

    With `minutes`, the run stops at the first step after so much wall-clock time, preparation included, with a
    checkpoint; the next call goes on to the very same losses. Raises RecipeError, CorpusError, ModelError, and
    ResumeError when the work directory was begun with another recipe.
    """
    # cuDNN's attention plans anew for every shape, and packed rows have many; the other kernels don't.
    torch.backends.cuda.enable_cudnn_sdp(False)
    processes = Processes.join(recipe.model.device)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes.local_count))
    run = Run(recipe, processes)
    while run.progress.stage < len(recipe.stages):
        stage = recipe.stages[run.progress.stage]
        optimizer = run.adapter.optimizer(stage.learning_rate, stage.weight_decay)
        run.resume(optimizer)
        if not _run_stage(run, stage, optimizer, minutes):
            processes.leave()
            return False
        run.next_stage(stage.steps)
    run.export()
    processes.leave()
    return True


def _run_stage(run: Run, stage: Stage, optimizer: torch.optim.Optimizer, minutes: float | None) -> bool:
    """Run the stage's remaining steps; False when the time was up before its end."""
    objective, batch_of = _objective(run, stage)
    dev = run.recipe.dev
    with ProgressBar(stage.kind, total=stage.steps, unit="steps") as bar:
        bar.skip(run.progress.step)
        for step in range(run.progress.step, stage.steps + 1):
            last = step == stage.steps
            scored = dev is not None and step > 0 and (last or step % dev.every == 0)
            if scored and isinstance(stage, ContrastiveStage):
                run.develop(stage, step)
                run.checkpoint(optimizer)
            if isinstance(objective, Regression) and (last or step % objective.every == 0):
                run.held_out(objective, step)
            if last:
                break
            _step(run, stage, optimizer, objective, batch_of(step), step)
            run.progress.step = step + 1
            bar.advance(1)
            out_of_time = run.processes.agree(minutes is not None and run.minutes() >= minutes)
            if out_of_time or run.progress.step % run.recipe.checkpoint_every == 0:
                run.checkpoint(optimizer)
            if out_of_time:
                return False
    return True


def _step(
    run: Run, stage: Stage, optimizer: torch.optim.Optimizer, objective: Objective, batch: Any, step: int
) -> None:
    """One step: gradients of all processes, clipped, applied, logged. Raises ModelError for a loss that diverged."""
    started, processes, backbone = time.monotonic(), run.processes, run.adapter.backbone
    rate = stage.learning_rate * _schedule(step, stage)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    seed = run.recipe.seed + _STAGE_SEED * run.progress.stage
    context = StepContext(step, stage.steps, seed, processes.rank, processes.count, processes.gather)
    run.adapter.train(True)
    half = backbone.model.dtype == torch.bfloat16
    # No cache of cast weights: one made in the pass without gradients would serve the pass with gradients, too.
    with torch.autocast(backbone.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
        logged = objective.backward(batch, context)
    parameters = list(run.adapter.parameters.values())
    processes.add_gradients(parameters)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, stage.clip))
    if not np.isfinite([*logged.values(), norm]).all():
        raise ModelError(
            f"{stage.kind}, step {step}: the loss or its gradient is not finite ({logged}, gradient {norm}).",
            remedy="Lower the stage's learning_rate, or set model.dtype to float32; the last checkpoint is kept.",
        )
    optimizer.step()
    optimizer.zero_grad()
    seconds = round(time.monotonic() - started, 3)
    of_set = {"set": batch.set.name} if isinstance(batch, Batch) else {}
    run.log({"step": step, **of_set, **logged, "gradient_norm": norm, "lr": rate, "seconds": seconds})


def _objective(run: Run, stage: Stage) -> tuple[Objective, Callable[[int], Any]]:
    """The objective that the stage minimises, and its batches by step."""
    if isinstance(stage, RegressionStage):
        regression = _regression(run, stage)
        return regression, regression.batch
    recipe, backbone = run.recipe, run.adapter.backbone
    seed = recipe.seed + _STAGE_SEED * run.progress.stage
    mixture = Mixture(run.sets, batch_size=stage.batch_size, negatives=stage.negatives, steps=stage.steps, seed=seed)
    return Contrastive(backbone, stage, recipe.data, run.token_weights(stage)), mixture.batch


def _regression(run: Run, stage: RegressionStage) -> Regression:
    """The objective of a regression stage. Its linear map begins as the one that fits the model as it is."""
    recipe, teacher, adapter = run.recipe, run.teacher(), run.adapter
    texts = TaughtTexts(adapter.backbone, teacher, run.sets, recipe, run.processes)
    rows, tokens = None, stage.tokens
    if tokens is not None:
        queries = train_queries(recipe, tokens.queries)
        blocks, folder = [texts.block(number) for number in range(tokens.blocks)], recipe.work / "rows"
        rows = run.processes.in_turn(lambda: fit_rows(adapter.backbone, teacher, blocks, queries, tokens, folder))
    if not adapter.parameters["projection"].any():
        fitted, vectors = texts.block(0)
        adapter.train(False)
        adapter.set_projection(fit_projection(adapter.backbone, fitted, vectors, texts.longest))
    instructions = [*(one.instruction for one in recipe.data.sets), *(tokens.instructions if tokens else [])]
    earlier = [one for one in recipe.stages[: run.progress.stage] if isinstance(one, RegressionStage)]
    first = sum(one.steps * one.batch_size for one in earlier)
    return Regression(adapter, stage, texts, first, rows, list(dict.fromkeys(instructions)))


def _schedule(step: int, stage: Stage) -> float:
    """Share of the learning rate: linearly up over the warm-up, level, then linearly down to 0 at the end."""
    rise = max(1, round(stage.warmup * stage.steps))
    fall = max(1, stage.steps - rise) if stage.decay is None else max(1, round(stage.decay * stage.steps))
    return min(1.0, (step + 1) / rise, (stage.steps - step) / fall)
