"""The mixture: what is in a batch, how often sets and examples come, and that a batch depends on its step alone."""

from collections import Counter
from dataclasses import replace

import pytest

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.training.mixture import Batch, Example, Mixture, TrainingSet
from tests.support.wordings import raises

STEPS = 1000


def make_set(name: str = "one", *, count: int = 50, negatives: int = 4, weight: float = 1.0) -> TrainingSet:
    """`count` examples, each with `negatives` negatives of its own."""
    examples = [
        Example(f"q{row}", f"query {row}", f"d{row}", tuple(f"d{row + shift}" for shift in range(1, negatives + 1)))
        for row in range(count)
    ]
    return TrainingSet(name, ("find it",), weight, examples, {})


def content(batch: Batch) -> tuple[str, list[int], list[list[str]]]:
    return batch.set.name, [batch.set.examples.index(example) for example in batch.examples], batch.candidates


def test_any_step_gives_what_running_through_gives() -> None:
    """Whatever number of steps is to come."""
    sets = [make_set("one", weight=3), make_set("two", count=30)]
    through, few, other = (
        Mixture(sets, 8, negatives=2, batches=batches, seed=seed) for batches, seed in ((STEPS, -1), (60, -1), (60, 6))
    )
    run = [content(through.batch(step)) for step in range(60)]
    assert [content(few.batch(step)) for step in reversed(range(60))] == run[::-1]
    assert content(Mixture(sets, 8, negatives=2, batches=STEPS, seed=-1).batch(31)) == run[31]
    assert [content(other.batch(step)) for step in range(60)] != run


def test_an_epoch_repeats_nothing_and_the_next_has_another_order() -> None:
    mixture = Mixture([make_set(count=50)], batch_size=8, negatives=0, batches=STEPS, seed=1)
    epochs = [[row for step in range(6) for row in content(mixture.batch(6 * epoch + step))[1]] for epoch in range(3)]
    assert all(len(set(rows)) == 48 for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_sets_come_by_weight_and_batches_are_homogeneous() -> None:
    sets = [make_set("one", weight=6), make_set("two", weight=3), make_set("three", weight=1)]
    mixture = Mixture(sets, batch_size=4, negatives=1, batches=STEPS, seed=0)
    batches = [mixture.batch(step) for step in range(1000)]
    share = Counter(batch.set.name for batch in batches)
    assert share["one"] == pytest.approx(600, abs=60)
    assert share["three"] == pytest.approx(100, abs=40)
    assert all(example in batch.set.examples for batch in batches for example in batch.examples)


def test_negatives_are_drawn_of_the_own_ones_best_first() -> None:
    one = make_set(negatives=5)
    many = Mixture([one], batch_size=10, negatives=3, batches=STEPS, seed=0)
    seen = set()
    for step in range(10):
        batch = many.batch(step)
        for example, (positive, *negatives) in zip(batch.examples, batch.candidates, strict=True):
            assert positive == example.positive
            places = [example.negatives.index(name) for name in negatives]
            assert len(places) == 3
            assert places == sorted(set(places))
            seen.add(tuple(places))
    assert len(seen) > 5
    batch = Mixture([one], batch_size=10, negatives=9, batches=STEPS, seed=0).batch(0)
    assert [tuple(row[1:]) for row in batch.candidates] == [example.negatives for example in batch.examples]


def test_sets_too_small_are_refused() -> None:
    with raises(RecipeError, naming="stages.batch_size"):
        Mixture([make_set(count=5)], batch_size=6, negatives=0, batches=STEPS, seed=0)


def test_each_query_of_a_batch_has_one_of_the_set_s_instructions_drawn_anew() -> None:
    one = replace(make_set(), instructions=("find", "look for", "search"))
    mixture = Mixture([one], batch_size=25, negatives=0, batches=40, seed=5)
    drawn = [mixture.batch(place).instructions for place in range(40)]
    counts = Counter(number for row in drawn for number in row)
    assert counts.keys() == {0, 1, 2}
    assert all(270 < count < 400 for count in counts.values()), counts
    assert len({tuple(row) for row in drawn}) == 40
