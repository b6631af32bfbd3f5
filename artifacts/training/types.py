"""What the parts of the trainer hand to each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["Batch", "Example", "Objective", "Progress", "StepContext", "TrainingSet", "query_ids", "same_text"]


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


def query_ids(tokenizer: TextTokenizer, name: str, examples: Sequence[Example], longest: int) -> list[list[int]]:
    """Token ids of the examples' queries, at most `longest` each. Raises CorpusError for one without tokens, which
    belongs to the set `name`."""
    encoded = tokenizer.encode_batch([example.query for example in examples])
    for example, ids in zip(examples, encoded, strict=True):
        if not len(ids):
            raise CorpusError(f'{name}: query "{example.query_id}" has no tokens.', remedy="Remove it.")
    return [ids[:longest].tolist() for ids in encoded]


def same_text(text: str) -> str:
    """A text as training sees it: case and outer white space make no difference."""
    return text.strip().casefold()


@dataclass
class Progress:
    """Where a run stands: `step` steps of stage number `stage` are done. `best` is the best development score so far.

    `elapsed_s` is the time spent in all slices, in seconds.
    """

    stage: int = 0
    step: int = 0
    best: float | None = None
    best_step: int | None = None
    elapsed_s: float = 0.0


class Objective(Protocol):
    """What a stage minimises."""

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add this process' share of the gradients of the whole batch's loss; return what is logged.

        Summed over the processes the gradients are those of one process with the whole batch.
        """
        ...
