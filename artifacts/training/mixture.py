"""Training sets, their mixture, and where a run stands. Each batch is of one set, and the same whether those before it
were drawn or not.

Examples of a batch may share the text of the query or of the positive document. No loss takes the one's positive for a
negative of the other: see `artifacts.training.losses.BatchLayout`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lightretriever.artifacts.errors import RecipeError

Tensors = dict[str, torch.Tensor]

# What a random number is for; with the recipe's seed this makes the streams independent.
_SETS, _ORDER, _NEGATIVES, _INSTRUCTIONS = range(4)


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


class Mixture:
    """Draws each of so many `batches` from `sets`, each as often as its weight says.

    An epoch of a set is a seeded permutation, cut into batches of `batch_size`; what is left at its end fills none. An
    example has at most `negatives` hard negatives in each batch, drawn from its own.
    """

    def __init__(
        self, sets: Sequence[TrainingSet], batch_size: int, *, negatives: int, batches: int, seed: int
    ) -> None:
        """Raise RecipeError where a set can't fill one batch."""
        for dataset in sets:
            if len(dataset.examples) < batch_size:
                raise RecipeError(
                    f"The set {dataset.name} has {len(dataset.examples)} examples, fewer than a batch of {batch_size}.",
                    remedy="Lower stages.batch_size, or leave the set out.",
                )
        self._sets, self._size, self._negatives, self._seed = list(sets), batch_size, negatives, seed % 2**64
        weights = np.array([dataset.weight for dataset in sets], dtype=np.float64)
        random = np.random.default_rng((self._seed, _SETS))
        self._drawn = random.choice(len(sets), size=batches, p=weights / weights.sum())

    def batch(self, index: int) -> Batch:
        """The batch of that number, counted from 0."""
        number = int(self._drawn[index])
        dataset, turn = self._sets[number], int(np.count_nonzero(self._drawn[:index] == number))
        epoch, part = divmod(turn, len(dataset.examples) // self._size)
        order = np.random.default_rng((self._seed, number, _ORDER, epoch)).permutation(len(dataset.examples))
        rows = order[part * self._size : (part + 1) * self._size].tolist()
        examples = [dataset.examples[row] for row in rows]
        random = np.random.default_rng((self._seed, number, _NEGATIVES, turn))
        candidates = []
        for example in examples:  # best first
            chosen = sorted(random.permutation(len(example.negatives))[: self._negatives].tolist())
            candidates.append([example.positive, *(example.negatives[place] for place in chosen)])
        random = np.random.default_rng((self._seed, number, _INSTRUCTIONS, turn))
        return Batch(dataset, examples, candidates, random.integers(len(dataset.instructions), size=len(rows)).tolist())
