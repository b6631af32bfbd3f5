"""Fusion: what it promises, and equality with ranx. tests/backends/test_random_requests.py compares every formula."""

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import cast

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.dense.index import best_first
from lightretriever.service.schemas import Normalization
from lightretriever.service.search.fusion import (
    FLOOR,
    CandidateTable,
    Fused,
    align,
    evidence,
    fuse_linear,
    fuse_rrf,
    moved_query,
    word_share,
)
from tests.support.wordings import raises

Leg = tuple[np.ndarray, np.ndarray]

NOTHING: Leg = (np.empty(0, np.int64), np.empty(0, np.float32))
SCORE = st.floats(-(2.0**99), 2.0**99, width=32)
WEIGHT = st.floats(0.01, 10.0)


@st.composite
def leg(draw: st.DrawFn, *, minimum: int = 0, ties: bool = True) -> Leg:
    ordinals = draw(st.lists(st.integers(0, 60), unique=True, min_size=minimum, max_size=40))
    score = SCORE | st.sampled_from([0.0, 0.5, 1.0])
    scores = draw(st.lists(score, unique=not ties, min_size=len(ordinals), max_size=len(ordinals)))
    return best_first(np.array(ordinals, np.int64), np.array(scores, np.float32), len(ordinals))


def in_leg_order(leg: Leg) -> list[int]:
    ordinals, scores = leg
    return [int(ordinal) for ordinal in ordinals[np.lexsort((ordinals, -scores))]]


def ranking(table: CandidateTable, fused: Fused) -> list[int]:
    return [int(ordinal) for ordinal in table.ordinals[fused.order]]


def scores_by_ordinal(table: CandidateTable, fused: Fused) -> dict[int, float]:
    return {int(table.ordinals[column]): float(fused.scores[column]) for column in fused.order}


def fuse(method: str, legs: list[Leg], weights: tuple[float, ...]) -> tuple[list[int], dict[int, float]]:
    table = align(legs)
    fused = fuse_rrf(table, weights) if method == "rrf" else fuse_linear(table, weights, cast(Normalization, method))
    return ranking(table, fused), scores_by_ordinal(table, fused)


METHODS = pytest.mark.parametrize("method", ["evidence", "range", "paper", "rrf"])


@METHODS
@given(dense=leg(minimum=1), sparse=leg(), weight=WEIGHT)
def test_a_leg_that_alone_counts_or_finds_keeps_its_order(method: str, dense: Leg, sparse: Leg, weight: float) -> None:
    assert fuse(method, [dense, sparse], (1.0, 0.0))[0] == in_leg_order(dense)
    assert fuse(method, [sparse, dense], (0.0, 1.0))[0] == in_leg_order(dense)
    assert fuse(method, [dense, NOTHING], (weight, 0.3))[0] == in_leg_order(dense)


@given(ordinal=st.integers(0, 9), score=SCORE, other=leg(minimum=2))
def test_a_single_hit_is_not_zeroed(ordinal: int, score: float, other: Leg) -> None:
    single = (np.array([ordinal]), np.array([score], np.float32))
    _, scores = fuse("range", [single, other], (1.0, 1.0))
    assert scores[ordinal] >= 1.0
    _, paper = fuse("paper", [single, (np.array([99]), np.array([1.0]))], (1.0, 1.0))
    assert paper == {ordinal: 0.0, 99: 0.0}


def test_evidence_takes_the_squares_of_ranges() -> None:
    _, scores = fuse("evidence", [(np.array([1, 2, 3]), np.array([0.9, 0.7, 0.1]))], (2.0,))
    assert scores == pytest.approx({1: 2.0, 2: 2 * (0.001 + 0.999 * 0.75**2), 3: 0.002})


@pytest.fixture(scope="module")
def ranx() -> Iterator[ModuleType]:
    """ranx, interpreted: compiling it takes a minute, and its formulas stay the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        yield importlib.import_module("ranx")


def ranx_scores(ranx: ModuleType, legs: list[Leg], **how: object) -> dict[int, float]:
    runs = []
    for leg in legs:
        by_ordinal = dict(zip(leg[0].tolist(), leg[1].astype(np.float64).tolist(), strict=True))
        runs.append(ranx.Run({"q": {str(ordinal): by_ordinal[ordinal] for ordinal in in_leg_order(leg)}}))
    return {int(key): value for key, value in ranx.fuse(runs, **how).run["q"].items()}


@given(dense=leg(minimum=1), sparse=leg(minimum=1), weights=st.tuples(WEIGHT, WEIGHT))
def test_paper_mode_equals_ranx(ranx: ModuleType, dense: Leg, sparse: Leg, weights: tuple[float, float]) -> None:
    expected = ranx_scores(ranx, [dense, sparse], norm="min-max", method="wsum", params={"weights": list(weights)})
    assert fuse("paper", [dense, sparse], weights)[1] == pytest.approx(expected, rel=1e-9, abs=1e-12)


# Equal scores only without: ranx sorts them in no particular order.
@given(dense=leg(minimum=1, ties=False), sparse=leg(minimum=1, ties=False), constant=st.integers(1, 100))
def test_rrf_equals_ranx(ranx: ModuleType, dense: Leg, sparse: Leg, constant: int) -> None:
    expected = ranx_scores(ranx, [dense, sparse], norm=None, method="rrf", params={"k": constant})
    table = align([dense, sparse])
    assert scores_by_ordinal(table, fuse_rrf(table, (1.0, 1.0), constant)) == pytest.approx(expected)


ONE = (np.array([1]), np.array([1.0]))


@pytest.mark.parametrize(("ordinals", "scores"), [([1, 2], [1.0]), ([1, 1], [1.0, 2.0]), ([1], [np.nan])])
def test_broken_legs_are_refused(ordinals: list[int], scores: list[float]) -> None:
    with raises(ValueError):
        align([(np.array(ordinals), np.array(scores))])


def test_a_score_of_the_other_leg_is_finite() -> None:
    with raises(ValueError):
        align([ONE, (np.array([2]), np.array([1.0]))]).fill(0, np.array([np.inf]))


@pytest.mark.parametrize(
    ("score", "largest", "share"),
    [
        (6.0, [1.0, 5.0, 2.0], 0.75),
        (6.0, [3.0] * 9, 0.5),  # the four heaviest terms
        (20.0, [3.0] * 9, 1.0),
        (0.0, [1.0], 0.0),
        (5.0, [0.0], 0.0),
        (5.0, [], 0.0),
    ],
)
def test_the_share_of_the_words_that_a_document_has(score: float, largest: list[float], share: float) -> None:
    assert word_share(score, np.array(largest, np.float32)) == pytest.approx(share)


def test_what_the_legs_know_of_a_query() -> None:
    """The dense leg's best document is 4 of 8 deviations above the background, the sparse leg's has 3 of the 7 that the
    four heaviest words add."""
    background = np.array([[0.5, 0.0], [-0.5, 0.0]], np.float32)
    query, largest = np.array([1.0, 0.0], np.float32), np.array([1, 1, 2, 2, 2, 1, 0.5], np.float32)
    dense, sparse = np.array([0.1, 2.0]), np.array([3.0, 1.0])
    assert evidence(query, background, dense, sparse, largest) == pytest.approx((0.5, 3 / 7))
    assert evidence(query, background, -dense, sparse * 9, largest) == pytest.approx((FLOOR, 1.0))
    assert evidence(query, background[:1], dense, 0 * sparse, largest) == pytest.approx((1.0, FLOOR))


def test_a_query_moves_towards_a_document() -> None:
    query, first = np.array([1, 0, 0], np.float32), np.array([0, 2, 0], np.float32)
    assert moved_query(query, first, 1.0) == pytest.approx([0.5**0.5, 0.5**0.5, 0])
    assert moved_query(query, first, 0.0) == pytest.approx(query)
    for nowhere, weight in ((np.zeros(3, np.float32), 1.0), (-query, 1.0)):
        assert moved_query(query, nowhere, weight) == pytest.approx(query)
