"""The mixture: batches of one set each, the same for a step whether the steps before it were run or not.

No two examples of a batch share the text of the query or that of the positive document: each would be a wrong negative
of the other. Hard negatives are not looked at: a candidate of one example that is the positive of another, or has its
text, is left out of that one's loss by the trainer, which sees `Batch.candidates`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.training.types import Batch, Example, TrainingSet, same_text

__all__ = ["Mixture"]

_BLOCK: Final = 4096  # steps whose sets are drawn at once
_ROUNDS: Final = 64
# What a random number is for; with the recipe's seed this makes the streams independent.
_SETS, _ORDER, _NEGATIVES = range(3)


class Mixture:
    """Draws the batch of any step from `sets`, each as often as its weight says.

    Within an epoch of a set each example comes at most once: a seeded permutation is cut into batches of `batch_size`;
    an example that clashes with one of its batch goes into the next one, and what is left at the end fills no batch.
    Every example has `negatives` hard negatives in each batch, drawn from its own where it has more, and filled up with
    random documents of the set where it has fewer.
    """

    def __init__(self, sets: Sequence[TrainingSet], *, batch_size: int, negatives: int, seed: int) -> None:
        """Raise RecipeError where there are no sets, or a set can't fill one batch, or has too few documents."""
        if not sets:
            raise RecipeError("data.sets: there is nothing to train on.", remedy="Give at least one set.")
        weights = np.array([one.weight for one in sets], dtype=np.float64)
        self._shares = weights / weights.sum()
        self._decks = [_Deck(one, batch_size, negatives, (seed % 2**64, number)) for number, one in enumerate(sets)]
        self._seed = seed % 2**64
        self._drawn: list[npt.NDArray[np.int64]] = []
        self._before = [np.zeros(len(sets), dtype=np.int64)]

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0. The first call for a late step draws the order of all before it."""
        if step < 0:
            raise ValueError(f"step is {step}; it must be 0 or more.")
        block, place = divmod(step, _BLOCK)
        while len(self._drawn) <= block:
            self._draw_block()
        drawn = self._drawn[block]
        chosen = int(drawn[place])
        turn = int(self._before[block][chosen] + np.count_nonzero(drawn[:place] == chosen))
        return self._decks[chosen].batch(turn)

    def _draw_block(self) -> None:
        random = np.random.default_rng((self._seed, _SETS, len(self._drawn)))
        drawn = random.choice(len(self._decks), size=_BLOCK, p=self._shares)
        self._drawn.append(drawn)
        self._before.append(self._before[-1] + np.bincount(drawn, minlength=len(self._decks)))


class _Deck:
    """The batches of one set, by turn."""

    def __init__(self, one: TrainingSet, batch_size: int, negatives: int, seed: tuple[int, int]) -> None:
        self._set, self._size, self._negatives, self._seed = one, batch_size, negatives, seed
        queries = _numbered([same_text(example.query) for example in one.examples])
        documents = _numbered([same_text(one.documents[example.positive]) for example in one.examples])
        self._keys = list(zip(queries, documents, strict=True))
        self._ids = list(one.documents) if negatives else []
        self._relevant: dict[int, set[str]] = {}
        for query, example in zip(queries, one.examples, strict=True):
            self._relevant.setdefault(query, set()).add(example.positive)
        self._ends: list[int] = []  # turns up to the end of each epoch
        self._epoch, self._batches = -1, list[list[int]]()
        if not self._deal(0):
            raise RecipeError(
                f"The set {one.name} has too few different queries and documents for one batch of {batch_size}: "
                f"{len(one.examples)} examples.",
                remedy="Lower stages.batch_size, or leave the set out.",
            )
        self._ends.append(len(self._batches))

    def batch(self, turn: int) -> Batch:
        while self._ends[-1] <= turn:
            self._ends.append(self._ends[-1] + len(self._deal(len(self._ends))))
        epoch = int(np.searchsorted(self._ends, turn, side="right"))
        rows = self._deal(epoch)[turn - (self._ends[epoch - 1] if epoch else 0)]
        examples = [self._set.examples[row] for row in rows]
        random = np.random.default_rng((*self._seed, _NEGATIVES, turn))
        candidates = [
            [example.positive, *self._draw(example, self._keys[row][0], random)]
            for row, example in zip(rows, examples, strict=True)
        ]
        return Batch(self._set, examples, candidates)

    def _deal(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, as places in the set's examples; the last epoch that was asked for is kept."""
        if epoch != self._epoch:
            random = np.random.default_rng((*self._seed, _ORDER, epoch))
            order = random.permutation(len(self._keys)).tolist()
            self._epoch, self._batches = epoch, list(self._dealt(order))
        return self._batches

    def _dealt(self, order: list[int]) -> Iterator[list[int]]:
        waiting: list[int] = []
        rest = iter(order)
        while True:
            batch: list[int] = []
            queries, documents = set[int](), set[int]()
            passed: list[int] = []
            for source in (iter(waiting), rest):
                while len(batch) < self._size and (row := next(source, None)) is not None:
                    query, document = self._keys[row]
                    if query in queries or document in documents:
                        passed.append(row)
                        continue
                    queries.add(query)
                    documents.add(document)
                    batch.append(row)
                if source is not rest:
                    passed.extend(source)
            if len(batch) < self._size:
                return
            waiting = passed
            yield batch

    def _draw(self, example: Example, query: int, random: np.random.Generator) -> list[str]:
        """Negatives for this step: best first where they are the example's own, random documents after them."""
        own = example.negatives
        if len(own) >= self._negatives:
            places = random.permutation(len(own))[: self._negatives]
            return [own[place] for place in sorted(places.tolist())]
        drawn = list(own)
        taken = {*own, *self._relevant[query]}
        positive = same_text(self._set.documents[example.positive])
        for _ in range(_ROUNDS):
            for place in random.integers(len(self._ids), size=2 * self._negatives).tolist():
                name = self._ids[place]
                if name not in taken and same_text(self._set.documents[name]) != positive:
                    taken.add(name)
                    drawn.append(name)
                    if len(drawn) == self._negatives:
                        return drawn
        raise RecipeError(
            f"The set {self._set.name} has too few documents ({len(self._ids)}) for {self._negatives} negatives of "
            f'the query "{example.query_id}".',
            remedy="Lower stages.negatives, or leave the set out.",
        )


def _numbered(texts: list[str]) -> list[int]:
    """A number for each text, the same for equal ones."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(text, len(numbers)) for text in texts]
