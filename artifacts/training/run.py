"""The state of a training run and its files.

WORK/plan.json               what the run was begun with
WORK/data/                   prepared examples
WORK/tokens.json             counts of the training documents' tokens
WORK/checkpoint.pt           where the run stands
WORK/log.jsonl               one line per step, one per development score
WORK/best.safetensors        weights of the best development score
"""

import json
import os
import sys
import time
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.atomic import check_target, writing
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically
from lightretriever.artifacts.pipeline.model import CHARS_PER_TOKEN, software
from lightretriever.artifacts.tokens.idf import TokenStatistics, count_tokens
from lightretriever.artifacts.training.adapter import load_for_training, marker, model_card
from lightretriever.artifacts.training.contrastive import QuerySide
from lightretriever.artifacts.training.data import data_lines, data_report, prepare
from lightretriever.artifacts.training.dev import DevSet, evaluate_dev
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.recipe import ContrastiveStage, TrainRecipe
from lightretriever.artifacts.training.types import Progress

CHECKPOINT = "checkpoint.pt"

# These keys may change while a run goes on: paths, and how a step is cut. Pairs have plans of their own.
_NOT_IN_PLAN: Any = {
    "output": True,
    "work": True,
    "model": True,
    "checkpoint_every": True,
    "shard": True,
    "gradient_checkpointing": True,
    "stages": {"__all__": {"chunk_tokens", "steps"}},
    "data": {"sets": {"__all__": {"path", "negatives"}}, "decontaminate": {"against"}},
    "dev": {"path"},
}


class Run:
    """A training run: its model, its data, and where it stands. `progress` is changed by the loop."""

    def __init__(self, recipe: TrainRecipe, engine: Engine) -> None:
        """Begin the run or go on with it: check the plan, prepare the data on the first process, load the model.

        Raises ResumeError when the work directory was begun with another recipe or other files, BundleError when
        something else than an adapter is where it is to appear, and what loading and preparing raise.
        """
        self.recipe, self.engine, self.accelerator = recipe, engine, engine.accelerator
        accelerator = engine.accelerator
        self._began = time.monotonic()
        self._checkpoint_file = recipe.work / CHECKPOINT
        self._log_file = recipe.work / "log.jsonl"
        if accelerator.is_main_process:
            check_target(recipe.output, overwrite=True, marker=marker(recipe))
        shard = recipe.shard and accelerator.num_processes > 1
        with accelerator.main_process_first():
            self.adapter = load_for_training(recipe, engine.device, shard=shard)
        engine.prepare(self.adapter, shard=shard)
        self._check_stages()
        if accelerator.is_main_process:
            plan = recipe.model_dump(mode="json", exclude=_NOT_IN_PLAN)
            plan |= {"model": self.adapter.backbone.fingerprint, "software": software()}
            check_plan(recipe.work / "plan.json", plan, growing="stages")
        self._dev = DevSet.load(recipe.dev, recipe.seed) if recipe.dev is not None else None
        with accelerator.main_process_first():
            self.sets = prepare(recipe)
        if accelerator.is_main_process:
            print("\n".join(data_lines(data_report(recipe))), file=sys.stderr)
        with accelerator.main_process_first():
            self.idf = self._statistics().idf()
        self.progress = Progress()
        self.resume(None)
        self._earlier_s = self.progress.elapsed_s

    def minutes(self) -> float:
        """Wall-clock minutes since this slice began."""
        return (time.monotonic() - self._began) / 60

    def query_side(self, stage: ContrastiveStage) -> QuerySide:
        """How a stage scores queries, on the model's device."""
        idf = torch.from_numpy(self.idf).to(self.adapter.backbone.device)
        return QuerySide(idf if stage.flops.idf else None, idf if self.recipe.idf_rows else None)

    def resume(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Go on from the checkpoint, where there is one, and forget what was logged after it. Raises ResumeError."""
        if self._checkpoint_file.is_file():
            content = _read_checkpoint(self._checkpoint_file)
            try:
                self.adapter.load(content["weights"])
                if optimizer is not None and content["optimizer"]:
                    self.adapter.load_optimizer(optimizer, content["optimizer"])
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise _unusable(self._checkpoint_file, error) from error
            self.progress = Progress(**content["progress"])
            self._forget_other_scores()
        if self.accelerator.is_main_process and self._log_file.is_file():
            os.truncate(self._log_file, self.progress.log_bytes)

    def checkpoint(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Write the checkpoint on the first process; the others wait for it. None: the next step has a fresh one."""
        content = {
            "weights": self.adapter.state(),
            "optimizer": {} if optimizer is None else self.adapter.optimizer_state(optimizer),
        }
        if self.accelerator.is_main_process:
            logged = self._log_file.stat().st_size if self._log_file.is_file() else 0
            self.progress = replace(self.progress, elapsed_s=self._elapsed_s(), log_bytes=logged)
            buffer = BytesIO()
            torch.save(content | {"progress": asdict(self.progress)}, buffer)
            write_atomically(self._checkpoint_file, buffer.getvalue())
        self.accelerator.wait_for_everyone()

    def next_stage(self, steps: int) -> None:
        """Note that the stage is done after so many steps; the next begins with a fresh optimiser."""
        finished = [*self.progress.finished, steps]
        self.progress = replace(self.progress, stage=self.progress.stage + 1, step=0, finished=finished)
        self.checkpoint(None)

    def log(self, entry: dict[str, Any]) -> None:
        """Add a line to the log."""
        if self.accelerator.is_main_process:
            line = {"stage": self.progress.stage, "elapsed_s": round(self._elapsed_s(), 1), **entry}
            with writing(self._log_file), self._log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def develop(self, stage: ContrastiveStage, step: int) -> None:
        """Score the development set, and keep the weights of the best hybrid score."""
        if self._dev is None:
            return
        backbone, dev, length = self.adapter.backbone, self._dev, self.recipe.data.max_document_length
        side = self.query_side(stage)
        scores = self.engine.evaluate(lambda: evaluate_dev(backbone, dev, length, side))
        self.log({"step": step, "dev": scores})
        if self.progress.best is None or scores["hybrid"] > self.progress.best:
            before = sum(stage.steps for stage in self.recipe.stages[: self.progress.stage])
            self.progress.best, self.progress.best_step = scores["hybrid"], before + step
            state = self.adapter.state()
            if self.accelerator.is_main_process:
                write_atomically(self.recipe.work / "best.safetensors", save(state))

    def export(self) -> None:
        """Write the best adapter, or the last one of a run without a development set."""
        state = self.adapter.state()
        if self.accelerator.is_main_process:
            best = self.recipe.work / "best.safetensors"
            if self.progress.best is not None and best.is_file():
                state = load_file(best)
            done = replace(self.progress, elapsed_s=self._elapsed_s())
            card = model_card(self.recipe, self.sets, done)
            self.adapter.save(self.recipe.output, self.recipe, state, self.idf, card)
        self.accelerator.wait_for_everyone()

    def _forget_other_scores(self) -> None:
        """Forget the best score where a stage begins whose kind is not that of the stage before: one of the two has no
        score, and the earlier weights are not to be taken for the later stage's."""
        number, stages = self.progress.stage, self.recipe.stages
        begins = self.progress.step == 0 and 0 < number < len(stages)
        if begins and stages[number].kind != stages[number - 1].kind:
            self.progress.best = self.progress.best_step = None

    def _check_stages(self) -> None:
        """Raise ResumeError if the recipe lacks a stage that has begun, or gives a finished one another number of steps
        than it took."""
        stages = self.recipe.stages
        progress = read_progress(self.recipe.work) if self._checkpoint_file.is_file() else Progress()
        there = len(stages)
        if there < (begun := progress.stage + (progress.step > 0)):
            raise ResumeError(
                f"stages: {there} now, but {begun} have begun.",
                remedy="Name them all; only a stage that has not begun can be taken back.",
            )
        for number, (stage, steps) in enumerate(zip(stages, progress.finished, strict=False)):
            if stage.steps != steps:
                raise ResumeError(
                    f"stages.{number}.steps: {stage.steps:,} now, but this stage has ended after {steps:,} steps.",
                    remedy=f"Set it to {steps}; to train on, add a stage.",
                )

    def _elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._began

    def _statistics(self) -> TokenStatistics:
        """Counts of the tokens in the documents of all sets, made once."""
        file, tokenizer = self.recipe.work / "tokens.json", self.adapter.backbone.tokenizer
        if not file.is_file():
            length = self.recipe.data.max_document_length
            texts = (text[: CHARS_PER_TOKEN * length] for dataset in self.sets for text in dataset.documents.values())
            cut = (ids[:length] for ids in tokenizer.encode_all(texts))
            made = count_tokens(cut, tokenizer.vocab_size)
            content = {"documents": made.documents, "frequencies": made.frequencies.tolist()}
            write_atomically(file, json.dumps(content).encode())
        kept = read_json(file)
        return TokenStatistics(kept["documents"], np.array(kept["frequencies"]))


def read_progress(work: Path) -> Progress:
    """Where the run of a work directory stands. Raises ResumeError where it has no usable checkpoint."""
    file = work / CHECKPOINT
    try:
        return Progress(**_read_checkpoint(file)["progress"])
    except (KeyError, TypeError) as error:
        raise _unusable(file, error) from error


def _read_checkpoint(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch documents no list of those that damage ends in
        raise _unusable(file, error) from error
    return content


def _unusable(file: Path, error: Exception) -> ResumeError:
    return ResumeError(f"{file}: the checkpoint can't be used: {error}.", remedy="Delete it to begin again.")
