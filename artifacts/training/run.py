"""The state of a training run and its files.

WORK/plan.json               what the run was begun with
WORK/data/                   prepared examples; SET/mined-STAGE.json: with the negatives that a stage mined
WORK/idf.npy                 IDF of the training documents' tokens
WORK/checkpoint.pt           where the run stands
WORK/log.jsonl               one line per step, one per development score
WORK/best.safetensors        weights of the best development score
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.atomic import check_target, writing
from lightretriever.artifacts.files.workdir import check_plan, write_atomically
from lightretriever.artifacts.pipeline.model import CHARS_PER_TOKEN, software
from lightretriever.artifacts.tokens.idf import IDF_FILE, count_tokens, load_idf, save_idf
from lightretriever.artifacts.training.adapter import load_for_training, marker, model_card
from lightretriever.artifacts.training.data import (
    chosen,
    data_lines,
    data_report,
    prepare,
    read_examples,
    read_pairs,
    write_examples,
)
from lightretriever.artifacts.training.dev import DevSet, evaluate_dev, ranked
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.mixture import Progress, TrainingSet
from lightretriever.artifacts.training.objectives import QuerySide
from lightretriever.artifacts.training.recipe import ContrastiveStage, TrainRecipe

CHECKPOINT = "checkpoint.pt"

# These keys may change while a run goes on: paths, and how a step is cut. Pairs have plans of their own.
_NOT_IN_PLAN: Any = {
    "output": True,
    "work": True,
    "model": True,
    "checkpoint_every": True,
    "gradient_checkpointing": True,
    "stages": {"__all__": {"chunk_tokens", "steps"}},
    "data": {"sets": {"__all__": {"path", "negatives"}}, "decontaminate": {"against"}},
    "dev": {"path"},
}


class Run:
    """A training run: its model, its data, and where it stands. `progress` is changed by the loop."""

    def __init__(self, recipe: TrainRecipe, engine: Engine) -> None:
        """Begin the run or go on with it. Raises ResumeError when the work directory was begun with another recipe or
        other files, BundleError when something else than an adapter is at `output`, and what loading and preparing
        raise."""
        self.recipe, self.engine, self.accelerator = recipe, engine, engine.accelerator
        accelerator = engine.accelerator
        self._began = time.monotonic()
        self._checkpoint_file = recipe.work / CHECKPOINT
        self._log_file = recipe.work / "log.jsonl"
        if accelerator.is_main_process:
            check_target(recipe.output, overwrite=True, marker=marker(recipe))
        with accelerator.main_process_first():
            self.adapter = load_for_training(recipe, engine.device)
        engine.model = accelerator.prepare_model(self.adapter)
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
            self.idf = self._idf()
        self.progress = Progress()
        self.resume(None)
        self._earlier_s = self.progress.elapsed_s

    def minutes(self) -> float:
        """Wall-clock minutes since this slice began."""
        return (time.monotonic() - self._began) / 60

    def query_side(self, stage: ContrastiveStage) -> QuerySide:
        """How a stage scores queries, on the model's device."""
        idf = torch.tensor(self.idf, device=self.adapter.backbone.device)
        return QuerySide(idf if stage.flops.idf else None, idf if self.recipe.idf_rows else None)

    def resume(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Go on from the checkpoint, where there is one, and forget what was logged after it. Raises ResumeError."""
        if self._checkpoint_file.is_file():
            with _reading(self._checkpoint_file):
                content = torch.load(self._checkpoint_file, map_location="cpu", weights_only=True)
                self.adapter.load(content["weights"])
                if optimizer is not None and content["moments"]:  # its rates stay
                    optimizer.load_state_dict({**optimizer.state_dict(), "state": content["moments"]})
                self.progress = Progress(**content["progress"])
        if self.accelerator.is_main_process and self._log_file.is_file():
            os.truncate(self._log_file, self.progress.log_bytes)

    def sets_of_stage(self) -> list[TrainingSet]:
        """The sets as the current stage trains on them: with the negatives of the last stage that mined, if any did.

        They are mined with the weights that the stage begins with, and kept, so that a run that goes on finds them.
        """
        stages = list(enumerate(self.recipe.stages[: self.progress.stage + 1]))
        mining = [(number, stage) for number, stage in stages if isinstance(stage, ContrastiveStage) and stage.mine]
        settings = self.recipe.data.negatives
        if not mining or settings is None:
            return self.sets
        number, stage = mining[-1]
        side, made = self.query_side(stage), []
        for recipe, dataset in zip(self.recipe.data.sets, self.sets, strict=True):
            file = self.recipe.work / "data" / dataset.name / f"mined-{number}.json"
            there = file.is_file()
            self.accelerator.wait_for_everyone()  # before the first process writes it
            if not there:
                rank = partial(ranked, self.adapter.backbone, dataset, stage, self.recipe.data, side)
                hits, (_, relevant, _) = self.engine.evaluate(rank), read_pairs(recipe, dataset.documents)
                if self.accelerator.is_main_process:
                    write_examples(file, chosen(dataset.examples, hits, dataset.documents, relevant, settings))
                self.accelerator.wait_for_everyone()
            made.append(replace(dataset, examples=read_examples(file)))
        return made

    def checkpoint(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Write the checkpoint on the first process; the others wait for it. None: the next step has a fresh one."""
        if self.accelerator.is_main_process:
            moments = {} if optimizer is None else optimizer.state_dict()["state"]
            logged = self._log_file.stat().st_size if self._log_file.is_file() else 0
            self.progress = replace(self.progress, elapsed_s=self._elapsed_s(), log_bytes=logged)
            buffer = BytesIO()
            content = {"weights": self.adapter.state(), "moments": moments, "progress": asdict(self.progress)}
            torch.save(content, buffer)
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
            if self.accelerator.is_main_process:
                write_atomically(self.recipe.work / "best.safetensors", save(self.adapter.state()))

    def export(self) -> None:
        """Write the best adapter, or the last one of a run without a development set."""
        if self.accelerator.is_main_process:
            best, scored = self.recipe.work / "best.safetensors", self.progress.best is not None
            state = load_file(best) if scored and best.is_file() else self.adapter.state()
            card = model_card(self.recipe, self.sets, replace(self.progress, elapsed_s=self._elapsed_s()))
            self.adapter.save(self.recipe.output, self.recipe, state, self.idf, card)
        self.accelerator.wait_for_everyone()

    def _check_stages(self) -> None:
        """Raise ResumeError if the recipe lacks a stage that has begun, or gives a finished one another number of steps
        than it took."""
        stages, progress = self.recipe.stages, read_progress(self.recipe.work)
        if len(stages) < (begun := progress.stage + (progress.step > 0)):
            raise ResumeError(
                f"stages: {len(stages)} now, but {begun} have begun.",
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

    def _idf(self) -> Float32Array:
        """IDF of the tokens (V,) in the documents of all sets, made once."""
        file, tokenizer = self.recipe.work / IDF_FILE, self.adapter.backbone.tokenizer
        if not file.is_file():
            length = self.recipe.data.max_document_length
            texts = (text[: CHARS_PER_TOKEN * length] for dataset in self.sets for text in dataset.documents.values())
            cut = (ids[:length] for ids in tokenizer.encode_all(texts))
            save_idf(file, count_tokens(cut, tokenizer.vocab_size).idf())
        return load_idf(file, tokenizer.vocab_size)


def read_progress(work: Path) -> Progress:
    """Where the run of a work directory stands. Raises ResumeError for a checkpoint that can't be used."""
    file = work / CHECKPOINT
    if not file.is_file():
        return Progress()
    with _reading(file):
        return Progress(**torch.load(file, map_location="cpu", weights_only=True)["progress"])


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch documents no list of those that damage ends in
        raise ResumeError(
            f"{file}: the checkpoint can't be used: {error}.", remedy="Delete it to begin again."
        ) from error
