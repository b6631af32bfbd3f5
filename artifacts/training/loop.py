"""The training loop: the recipe's stages in order, in slices of time."""

import os
import time
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.evaluation.searching import OpenSearcher
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.training.contrastive import Contrastive
from lightretriever.artifacts.training.mixture import Mixture
from lightretriever.artifacts.training.processes import Processes
from lightretriever.artifacts.training.query_likelihood import QueryLikelihood
from lightretriever.artifacts.training.recipe import ContrastiveStage, QueryLikelihoodStage, TrainRecipe
from lightretriever.artifacts.training.run import Run
from lightretriever.artifacts.training.teachers import pick, teacher_scores
from lightretriever.artifacts.training.types import Batch, Objective, StepContext

__all__ = ["train"]

AnyStage = QueryLikelihoodStage | ContrastiveStage

# Stages draw from far apart places of the seeds' sequence.
_STAGE_SEED = 1_000_003


def train(recipe: TrainRecipe, open_searcher: OpenSearcher, *, minutes: float | None = None) -> bool:
    """Train the recipe's adapter, or go on with it; returns whether it is finished and written to `recipe.output`.

    `open_searcher` opens the bundles that hard negatives come from.

    With `minutes`, the run stops at the first step after so much wall-clock time, preparation included, with a
    checkpoint; the next call goes on to the very same losses. Raises RecipeError, CorpusError, ModelError, and
    ResumeError when the work directory was begun with another recipe.
    """
    # cuDNN's attention plans anew for every shape, and packed rows have many; the other kernels don't.
    torch.backends.cuda.enable_cudnn_sdp(False)
    processes = Processes.join(recipe.model.device)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes.local_count))
    run = Run(recipe, processes, open_searcher)
    while run.progress.stage < len(recipe.stages):
        stage = recipe.stages[run.progress.stage]
        optimizer = torch.optim.AdamW(
            run.adapter.parameters.values(), lr=stage.learning_rate, weight_decay=stage.weight_decay
        )
        run.resume(optimizer)
        if not _run_stage(run, stage, optimizer, minutes):
            processes.leave()
            return False
        run.next_stage()
    run.export()
    processes.leave()
    return True


def _run_stage(run: Run, stage: AnyStage, optimizer: torch.optim.Optimizer, minutes: float | None) -> bool:
    """Run the stage's remaining steps; False when the time was up before its end."""
    objective, batch_of = _objective(run, stage)
    dev = run.recipe.dev if isinstance(stage, ContrastiveStage) else None
    with ProgressBar(stage.kind, total=stage.steps, unit="steps") as bar:
        bar.skip(run.progress.step)
        for step in range(run.progress.step, stage.steps):
            if dev is not None and step > 0 and step % dev.every == 0:
                run.develop(cast(ContrastiveStage, stage), step)
                run.checkpoint(optimizer)
            _step(run, stage, optimizer, objective, batch_of(step), step)
            run.progress.step = step + 1
            bar.advance(1)
            out_of_time = run.processes.agree(minutes is not None and run.minutes() >= minutes)
            if out_of_time or run.progress.step % run.recipe.checkpoint_every == 0:
                run.checkpoint(optimizer)
            if out_of_time:
                return False
    if dev is not None:
        run.develop(cast(ContrastiveStage, stage), stage.steps)
    return True


def _step(
    run: Run,
    stage: AnyStage,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    batch: Batch,
    step: int,
) -> None:
    """One step: gradients of all processes, clipped, applied, logged. Raises ModelError for a loss that diverged."""
    started, processes, backbone = time.monotonic(), run.processes, run.adapter.backbone
    rate = stage.learning_rate * _schedule(step, stage)
    for group in optimizer.param_groups:
        group["lr"] = rate
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
    run.log({"step": step, "set": batch.set.name, **logged, "gradient_norm": norm, "lr": rate, "seconds": seconds})


def _objective(run: Run, stage: AnyStage) -> tuple[Objective, Callable[[int], Batch]]:
    """What the stage minimises, and its batches by step."""
    recipe, backbone = run.recipe, run.adapter.backbone
    negatives = stage.negatives if isinstance(stage, ContrastiveStage) else 0
    seed = recipe.seed + _STAGE_SEED * run.progress.stage
    mixture = Mixture(run.sets, batch_size=stage.batch_size, negatives=negatives, seed=seed)
    if isinstance(stage, QueryLikelihoodStage):
        return QueryLikelihood(backbone, stage, recipe.data), mixture.batch
    objective = Contrastive(backbone, stage, recipe.data, run.idf_of(stage), run.row_weights())
    if stage.distil is None:
        return objective, mixture.batch
    scores = run.processes.in_turn(lambda: teacher_scores(recipe, run.sets, stage))
    return objective, lambda step: pick(scores, mixture.batch(step))


def _schedule(step: int, stage: AnyStage) -> float:
    """Share of the learning rate: linearly up over the warm-up, then linearly down to 0 at the end."""
    rise = max(1, round(stage.warmup * stage.steps))
    return min((step + 1) / rise, (stage.steps - step) / max(1, stage.steps - rise))
