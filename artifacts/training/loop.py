"""The training loop: the recipe's stages in order, in slices of time."""

import math
import time

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from torch.distributed import DistError
from torch.optim.lr_scheduler import LambdaLR

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.evaluation.searching import OpenSearcher
from lightretriever.artifacts.reports import ProgressBar
from lightretriever.artifacts.training.engine import Engine, out_of_memory, too_large
from lightretriever.artifacts.training.mixture import Mixture, StepContext
from lightretriever.artifacts.training.objectives import Contrastive, Likelihood
from lightretriever.artifacts.training.recipe import LikelihoodStage, Stage, TrainRecipe
from lightretriever.artifacts.training.run import Run
from lightretriever.artifacts.training.teachers import Teachers

# Stages draw from far apart places of the seeds' sequence.
_STAGE_SEED = 1_000_003


def train(recipe: TrainRecipe, *, minutes: float | None = None, open_searcher: OpenSearcher | None = None) -> bool:
    """Train the recipe's adapter, or go on with it; returns whether it is finished and written to `recipe.output`.

    With `minutes`, the run stops at the first step after so much wall-clock time, preparation included, with a
    checkpoint; the next call goes on to the very same losses. `open_searcher` is for bundles that are teachers.
    Raises RecipeError, CorpusError, ModelError, and ResumeError when the work directory was begun with another recipe.
    """
    # cuDNN's attention plans anew for every shape, and packed rows have many; the other kernels don't.
    torch.backends.cuda.enable_cudnn_sdp(False)
    engine = Engine.of(recipe)
    try:
        run = Run(recipe, engine)
        finished = run_stages(run, minutes, open_searcher)
        if finished:
            run.export()
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error):
            raise too_large(error, engine.device) from error
        if isinstance(error, DistError) or "by peer" in str(error):  # as gloo says of a connection
            raise ModelError("Another process of this run has ended.", remedy="Its own message says why.") from error
        raise
    engine.accelerator.end_training()
    return finished


def run_stages(run: Run, minutes: float | None = None, open_searcher: OpenSearcher | None = None) -> bool:
    """Run what is left of the stages, as `train` does; False when the time was up before their end."""
    return all(_run_stage(run, stage, minutes, open_searcher) for stage in run.recipe.stages[run.progress.stage :])


def _run_stage(run: Run, stage: Stage, minutes: float | None, open_searcher: OpenSearcher | None) -> bool:
    """Run the stage's remaining steps; False when the time was up before its end."""
    weights = list(run.adapter.trained().values())
    optimizer = torch.optim.AdamW(weights, lr=stage.learning_rate, weight_decay=stage.weight_decay)
    run.resume(optimizer)
    first = run.progress.step
    scheduler = LambdaLR(optimizer, lambda done: schedule(first + done, stage))
    run.accelerator.gradient_accumulation_steps = stage.accumulate
    run.engine.chunk_tokens = stage.chunk_tokens or run.progress.chunk_tokens or run.engine.chunk_tokens
    if isinstance(stage, LikelihoodStage):  # which has no score: earlier weights are not to be taken for its own
        run.progress.best = run.progress.best_step = None
    objective, mixture = _objective(run, stage, open_searcher)
    dev = run.recipe.dev
    with ProgressBar(stage.kind, total=stage.steps, unit="steps") as bar:
        bar.skip(run.progress.step)
        for step in range(run.progress.step, stage.steps + 1):
            last = step == stage.steps
            scored = dev is not None and step > 0 and (last or step % dev.every == 0)
            if scored and not isinstance(stage, LikelihoodStage):
                run.develop(stage, step)
                run.checkpoint(optimizer)
            if last:
                break
            _step(run, stage, optimizer, objective, mixture, float(scheduler.get_last_lr()[0]))
            scheduler.step()
            run.progress.step = step + 1
            bar.advance(1)
            (out_of_time,) = broadcast_object_list([minutes is not None and run.minutes() >= minutes])
            if out_of_time or run.progress.step % run.recipe.checkpoint_every == 0:
                run.checkpoint(optimizer)
            if out_of_time:
                return False
    run.next_stage(stage.steps)
    return True


def _step(
    run: Run,
    stage: Stage,
    optimizer: torch.optim.Optimizer,
    objective: Contrastive | Likelihood,
    mixture: Mixture,
    rate: float,
) -> None:
    """One step: gradients of its batches and of all processes, clipped, applied, logged. Raises ModelError for a loss
    that diverged."""
    started, step = time.monotonic(), run.progress.step
    run.adapter.train()
    while True:
        run.accelerator.step, parts, sets = 0, list[dict[str, float]](), dict[str, None]()
        try:
            for number in range(step * stage.accumulate, (step + 1) * stage.accumulate):
                batch = mixture.batch(number)
                with run.accelerator.accumulate(run.engine.model):
                    parts.append(objective.backward(batch, StepContext(step, stage.steps, _stage_seed(run), number)))
                sets[batch.set.name] = None
            break
        except (RuntimeError, MemoryError) as error:
            if stage.chunk_tokens is not None or not out_of_memory(error) or not run.engine.halve():
                raise
            run.progress.chunk_tokens = run.engine.chunk_tokens
            optimizer.zero_grad()
    logged = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
    logged["tokens"] *= len(parts)
    norm = float(run.accelerator.clip_grad_norm_(run.adapter.trained().values(), stage.clip))
    if not np.isfinite([*logged.values(), norm]).all():
        raise ModelError(
            f"{stage.kind}, step {step}: the loss or its gradient is not finite ({logged}, gradient {norm}).",
            remedy="Lower the stage's learning_rate, or set model.dtype to float32; the last checkpoint is kept.",
        )
    optimizer.step()
    optimizer.zero_grad()
    seconds = round(time.monotonic() - started, 3)
    run.log({"step": step, "set": ", ".join(sets), **logged, "gradient_norm": norm, "lr": rate, "seconds": seconds})


def _stage_seed(run: Run) -> int:
    return run.recipe.seed + _STAGE_SEED * run.progress.stage


def _objective(run: Run, stage: Stage, open_searcher: OpenSearcher | None) -> tuple[Contrastive | Likelihood, Mixture]:
    """The objective that the stage minimises, and its batches."""
    recipe, backbone, engine = run.recipe, run.adapter.backbone, run.engine
    batches, seed = stage.steps * stage.accumulate, _stage_seed(run)
    if isinstance(stage, LikelihoodStage):
        objective = Likelihood(engine, backbone, stage, recipe.data)
        return objective, Mixture(run.sets, stage.batch_size, negatives=0, batches=batches, seed=seed)
    sets, teachers = run.sets_of_stage(), None
    if stage.distillation is not None:
        folder = recipe.work / "teachers" / str(run.progress.stage)
        with run.accelerator.main_process_first():
            teachers = Teachers(stage.distillation, sets, folder, open_searcher, str(engine.device))
    mixture = Mixture(sets, stage.batch_size, negatives=stage.negatives, batches=batches, seed=seed)
    return Contrastive(engine, backbone, stage, recipe.data, run.query_side(stage), teachers), mixture


def schedule(step: int, stage: Stage) -> float:
    """Share of the learning rate: linearly up over the warm-up, level, then down to the minimum, which comes one step
    after the last. With `cosine` it falls as (1 + cos π·p) / 2, p being the part of the fall that is done."""
    rise = max(1, round(stage.warmup * stage.steps))
    fall = max(1, stage.steps - rise) if stage.decay is None else max(1, round(stage.decay * stage.steps))
    share = min(1.0, (stage.steps - step) / fall)
    if stage.schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return min((step + 1) / rise, stage.minimum_rate + (1 - stage.minimum_rate) * share)
