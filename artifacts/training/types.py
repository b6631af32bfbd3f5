"""The types that the parts of the trainer share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Example:
    """A query with its relevant document and its hard negatives, best first. Documents by id."""

    query_id: str
    query: str
    positive: str
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingSet:
    """One set of the mixture, cleaned: its examples, and the text of every document by id."""

    name: str
    instructions: tuple[str, ...]
    weight: float
    examples: list[Example]
    documents: Mapping[str, str]


@dataclass(frozen=True)
class Batch:
    """B examples of one set. `candidates[i]` are the ids of an example's documents in this step, the positive first,
    then negatives, and `instructions[i]` is the number of its instruction in the set's."""

    set: TrainingSet
    examples: list[Example]
    candidates: list[list[str]]
    instructions: list[int]


@dataclass(frozen=True)
class StepContext:
    """Where a step of a stage stands; `seed` is the stage's, and `batch` numbers the stage's batches."""

    step: int
    steps: int
    seed: int
    batch: int


def same_text(text: str) -> str:
    """A text as training sees it: case and outer white space make no difference."""
    return text.strip().casefold()


@dataclass
class Progress:
    """Where a run stands: `step` steps of stage number `stage` are done, and `finished` has the steps of those before.
    The `best` development score came after `best_step` steps of all stages. `elapsed_s` is of all slices, `log_bytes`
    the size of the log, `chunk_tokens` what was found to fit into the memory, None before anything didn't."""

    stage: int = 0
    step: int = 0
    best: float | None = None
    best_step: int | None = None
    elapsed_s: float = 0.0
    log_bytes: int = 0
    finished: list[int] = field(default_factory=list)
    chunk_tokens: int | None = None
