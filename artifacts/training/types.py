"""What the parts of the trainer hand to each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Batch", "Example", "Objective", "StepContext", "TrainingSet"]


@dataclass(frozen=True)
class Example:
    """A query with its relevant document and its hard negatives, best first. Documents by id.

    `row` is its place in its set's list, where cached teacher scores are found.
    """

    row: int
    query_id: str
    query: str
    positive: str
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingSet:
    """One set of the mixture, cleaned: its examples, and the text of every document by id."""

    name: str
    instruction: str
    weight: float
    examples: list[Example]
    documents: Mapping[str, str]


@dataclass(frozen=True)
class Batch:
    """One homogeneous batch of B examples of one set, each with the same number C-1 of negatives drawn for this step.

    `candidates[i]` are C document ids, the positive first. `teachers`, where there are any, are their scores
    (teachers, B, C) float32.
    """

    set: TrainingSet
    examples: list[Example]
    candidates: list[list[str]]
    teachers: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class StepContext:
    """Where a step stands. `rank` of `world` processes share the batch; `gather` joins a tensor's rows of all."""

    step: int
    steps: int
    seed: int
    rank: int = 0
    world: int = 1
    gather: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor


class Objective(Protocol):
    """What a stage minimises."""

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add this process' share of the gradients of the whole batch's loss; return what is logged.

        Summed over the processes the gradients are those of one process with the whole batch.
        """
        ...
