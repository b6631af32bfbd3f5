"""Vectors written behind a dense index are searched with it as one, without codes and with them."""

import faiss
import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.later import MIN_CODED, LaterIndex, LaterIndexWriter
from tests.support.vectors import random_unit, unit
from tests.support.wordings import raises

D = 32
FIRST = 300


def flat(rows: npt.NDArray[np.float32]) -> DenseIndex:
    index = faiss.IndexFlatIP(D)
    index.add(rows)
    return DenseIndex(index)


def bits(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(chosen, bitorder="little")


def recall(index: LaterIndex, whole: DenseIndex, k: int, chosen: npt.NDArray[np.bool_] | None = None) -> float:
    shares = []
    for query in random_unit(20, D, 7):
        ordinals, scores = index.search(query, k, None if chosen is None else bits(chosen))
        assert len(ordinals) == k
        assert chosen is None or chosen[ordinals].all()
        assert (np.diff(scores) <= 0).all()
        assert (scores == index.scores(query, ordinals)).all()
        expected, _ = whole.search(query, k, None if chosen is None else bits(chosen))
        shares.append(len(np.intersect1d(ordinals, expected)) / k)
    return float(np.mean(shares))


def test_few_later_vectors_give_the_scores_and_the_order_of_one_index() -> None:
    rows = random_unit(FIRST + 500, D, 1)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    before = writer.behind()
    writer.add(rows[FIRST:400])
    writer.add(rows[400:])
    assert not writer.encode()
    index, whole = writer.behind(), flat(rows)
    for query in random_unit(5, D, 2):
        for chosen in (None, np.arange(len(rows)) % 3 == 0):
            among = None if chosen is None else bits(chosen)
            one, two = (each.search(query, 50, among) for each in (index, whole))
            np.testing.assert_array_equal(one, two)
        assert before.search(query, 400)[0].max() < FIRST
    both = np.array([3, FIRST + 2, 700])
    assert (index.vectors(both) == rows[both]).all()
    assert (index.scores(rows[0], both) == whole.scores(rows[0], both)).all()
    for bad in (np.array([800]), np.array([-1])):
        with raises(ValueError):
            index.vectors(bad)


def test_many_later_vectors_get_codes_which_find_nearly_all() -> None:
    rows = random_unit(FIRST + 5 * MIN_CODED, D, 3)
    whole = flat(rows)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    made = []
    for part in np.split(rows[FIRST:], 40):
        writer.add(part)
        made.append(writer.encode())
        index = writer.behind()
    assert made[0] is False
    assert made.count(True) > 5
    assert (index.vectors(np.arange(len(rows))) == rows).all()
    assert recall(index, whole, 10) > 0.9
    assert recall(index, whole, 1000) > 0.98
    assert recall(index, whole, 2000) > 0.99
    assert recall(index, whole, 10, np.arange(len(rows)) % 10 != 0) > 0.9
    assert recall(index, whole, 10, np.arange(len(rows)) % 50 == 0) == 1
    assert recall(index, whole, 10, np.arange(len(rows)) % 3 == 0) > 0.9  # a third has more than are all scored
    assert recall(index, whole, 10, np.arange(len(rows)) < FIRST) == 1
    assert recall(index, whole, 10, np.arange(len(rows)) > len(rows) - 2_500) == 1  # in the last codes and behind


def test_documents_that_came_after_a_filter_are_not_found_with_it() -> None:
    rows = random_unit(FIRST + 3 * MIN_CODED, D, 6)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    writer.add(rows[FIRST:])
    writer.encode()
    known = np.ones(FIRST + 1_001, np.bool_)
    among = np.pad(bits(known), (0, -len(bits(known)) % 8))
    for index in (writer.behind(), writer.behind(among)):
        ordinals, _ = index.search(rows[-1], 900, among)
        assert len(ordinals) == 900
        assert ordinals.max() < len(known)
    assert writer.behind(among).search(rows[-1], 900)[0].max() < len(known)


def test_a_query_like_later_vectors_alone_finds_as_many_of_them_as_are_wanted() -> None:
    near = random_unit(1, D, 8) + 0.5 * random_unit(3_000, D, 9)
    rows = np.concatenate([random_unit(20 * FIRST, D, 1), unit(near)])
    writer = LaterIndexWriter(flat(rows[: 20 * FIRST]))
    writer.add(rows[20 * FIRST :])
    assert writer.encode()
    ordinals, _ = writer.behind().search(rows[-1], 400)
    expected, _ = flat(rows).search(rows[-1], 400)
    assert expected.min() >= 20 * FIRST
    assert len(np.intersect1d(ordinals, expected)) > 0.95 * 400


def test_codes_that_are_made_beside_a_write_are_those_of_their_vectors() -> None:
    rows = random_unit(FIRST + 2 * MIN_CODED - 100, D, 5)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    writer.add(rows[FIRST : FIRST + MIN_CODED])
    assert writer.encode()
    writer.add(rows[FIRST + MIN_CODED : -7])
    before = writer.behind()
    assert writer.encode()
    writer.add(rows[-7:])
    index = writer.behind()
    assert not writer.encode()
    assert (index.vectors(np.arange(len(rows))) == rows).all()
    assert (before.vectors(np.arange(len(rows) - 7)) == rows[:-7]).all()
