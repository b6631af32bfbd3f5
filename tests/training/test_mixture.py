"""The mixture: what is in a batch, how often sets and examples come, and that a batch depends on its step alone."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.training.mixture import Mixture
from lightretriever.artifacts.training.types import Batch, Example, TrainingSet


def make_set(
    name: str = "one",
    *,
    count: int = 50,
    queries: int | None = None,
    positives: int | None = None,
    documents: int = 80,
    negatives: int = 4,
    weight: float = 1.0,
) -> TrainingSet:
    """`count` examples over so many different queries and positives, each with `negatives` negatives of its own."""
    examples = []
    for row in range(count):
        positive = row % (positives or count)
        own = tuple(f"d{(positive + shift) % documents}" for shift in range(1, negatives + 1))
        examples.append(Example(row, f"q{row}", f"query {row % (queries or count)}", f"d{positive}", own))
    return TrainingSet(name, "find it", weight, examples, {f"d{i}": f"text {i}" for i in range(documents)})


def content(batch: Batch) -> tuple[str, list[int], list[list[str]]]:
    return batch.set.name, [example.row for example in batch.examples], batch.candidates


def test_any_step_gives_what_running_through_gives() -> None:
    sets = [make_set("one", weight=3), make_set("two", count=30, queries=12)]
    through = Mixture(sets, batch_size=8, negatives=2, seed=5)
    run = [content(through.batch(step)) for step in range(60)]
    for step in (59, 31, 0, 32):
        assert content(Mixture(sets, batch_size=8, negatives=2, seed=5).batch(step)) == run[step]
    assert [content(through.batch(step)) for step in reversed(range(60))] == run[::-1]
    other = Mixture(sets, batch_size=8, negatives=2, seed=6)
    assert [content(other.batch(step)) for step in range(60)] != run


def test_late_steps_beyond_one_block_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [make_set("one"), make_set("two", count=23)]
    monkeypatch.setattr("lightretriever.artifacts.training.mixture._BLOCK", 4)
    through = Mixture(sets, batch_size=8, negatives=0, seed=-1)
    run = [content(through.batch(step)) for step in range(30)]
    assert content(Mixture(sets, batch_size=8, negatives=0, seed=-1).batch(29)) == run[29]
    for name in ("one", "two"):
        rows = [row for found, batch, _ in run if found == name for row in batch]
        count = len(next(one for one in sets if one.name == name).examples) // 8 * 8
        assert len(set(rows[:count])) == count


def test_an_epoch_repeats_nothing_and_the_next_has_another_order() -> None:
    mixture = Mixture([make_set(count=50)], batch_size=8, negatives=0, seed=1)
    epochs = [[row for step in range(6) for row in content(mixture.batch(6 * epoch + step))[1]] for epoch in range(3)]
    assert all(len(set(rows)) == 48 for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_sets_come_by_weight_and_batches_are_homogeneous() -> None:
    sets = [make_set("one", weight=6), make_set("two", weight=3), make_set("three", weight=1)]
    mixture = Mixture(sets, batch_size=4, negatives=1, seed=0)
    batches = [mixture.batch(step) for step in range(1000)]
    share = Counter(batch.set.name for batch in batches)
    assert share["one"] == pytest.approx(600, abs=60)
    assert share["three"] == pytest.approx(100, abs=40)
    assert all(example in batch.set.examples for batch in batches for example in batch.examples)


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(10, 60),
    queries=st.integers(5, 60),
    positives=st.integers(5, 60),
    size=st.integers(2, 5),
    seed=st.integers(-3, 3),
)
def test_no_batch_has_a_false_in_batch_negative(count: int, queries: int, positives: int, size: int, seed: int) -> None:
    one = make_set(count=count, queries=queries, positives=positives)
    try:
        mixture = Mixture([one], batch_size=size, negatives=6, seed=seed)
    except RecipeError:
        pairs = {(example.query, example.positive) for example in one.examples}
        assert min(len({query for query, _ in pairs}), len({positive for _, positive in pairs})) < 2 * size
        return
    relevant: dict[str, set[str]] = {}
    for example in one.examples:
        relevant.setdefault(example.query, set()).add(example.positive)
    for step in range(12):
        batch = mixture.batch(step)
        assert len(batch.examples) == size == len(batch.candidates)
        assert len({example.query for example in batch.examples}) == size
        assert len({example.positive for example in batch.examples}) == size
        for example, (positive, *negatives) in zip(batch.examples, batch.candidates, strict=True):
            assert positive == example.positive
            assert len(set(negatives)) == 6
            assert not (set(negatives) - set(example.negatives)) & relevant[example.query]


def test_an_example_that_clashes_comes_in_a_later_batch() -> None:
    """Two queries each ask for one of 24 documents: every batch of eight has eight documents, and all 48 come."""
    one = make_set(count=48, positives=24)
    mixture = Mixture([one], batch_size=8, negatives=0, seed=3)
    batches = [mixture.batch(step) for step in range(5)]
    rows = [example.row for batch in batches for example in batch.examples]
    assert len(set(rows)) == 40
    assert all(len({example.positive for example in batch.examples}) == 8 for batch in batches)


def test_queries_and_documents_that_differ_in_case_alone_are_the_same() -> None:
    examples = [Example(0, "a", "Who is it?", "d0"), Example(1, "b", " who is IT? ", "d1"), Example(2, "c", "x", "d2")]
    documents = {"d0": "first", "d1": "second", "d2": "First", "d3": "third"}
    mixture = Mixture([TrainingSet("s", "i", 1.0, examples, documents)], batch_size=2, negatives=0, seed=0)
    assert {frozenset(content(mixture.batch(step))[1]) for step in range(20)} == {frozenset({1, 2})}


def test_negatives_are_the_own_ones_best_first_then_random_ones() -> None:
    one = make_set(negatives=5)
    many = Mixture([one], batch_size=10, negatives=3, seed=0)
    seen = set()
    for step in range(10):
        batch = many.batch(step)
        for example, (_, *negatives) in zip(batch.examples, batch.candidates, strict=True):
            places = [example.negatives.index(name) for name in negatives]
            assert places == sorted(set(places))
            seen.add(tuple(places))
    assert len(seen) > 5
    batch = Mixture([one], batch_size=10, negatives=9, seed=0).batch(0)
    for example, (positive, *negatives) in zip(batch.examples, batch.candidates, strict=True):
        assert tuple(negatives[:5]) == example.negatives
        assert len({positive, *negatives}) == 10


def test_random_negatives_have_another_text_than_the_positive() -> None:
    examples = [Example(row, f"q{row}", f"query {row}", f"d{row}") for row in range(4)]
    documents = {f"d{i}": f"text {i % 4}" for i in range(40)}
    mixture = Mixture([TrainingSet("s", "i", 1.0, examples, documents)], batch_size=4, negatives=20, seed=0)
    for positive, *negatives in mixture.batch(0).candidates:
        assert documents[positive] not in {documents[name] for name in negatives}


@pytest.mark.parametrize(
    ("one", "size", "negatives", "message"),
    [
        (make_set(count=5), 6, 0, "too few different queries and documents for one batch of 6: 5 examples"),
        (make_set(queries=3), 4, 0, "too few different queries"),
        (make_set(positives=3), 4, 0, "too few different queries"),
    ],
)
def test_sets_too_small_are_refused(one: TrainingSet, size: int, negatives: int, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Mixture([one], batch_size=size, negatives=negatives, seed=0)


def test_too_few_documents_no_sets_and_bad_steps_are_refused() -> None:
    few = Mixture([make_set(count=4, documents=5, negatives=1)], batch_size=2, negatives=5, seed=0)
    with pytest.raises(RecipeError, match=r"too few documents \(5\) for 5 negatives"):
        few.batch(0)
    with pytest.raises(RecipeError, match="nothing to train on"):
        Mixture([], batch_size=2, negatives=0, seed=0)
    with pytest.raises(ValueError, match="step is -1"):
        few.batch(-1)
