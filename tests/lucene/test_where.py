"""Conditions that make no sense or have thousands of parts, and documents without a query, as they were written."""

from collections.abc import Iterator

import numpy as np
import pytest

from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from tests.lucene.support import rows
from tests.support.wordings import raises

COUNT = 3_000
DATED = [number for number in range(COUNT) if number % 5]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    """Of five documents one has no year."""
    path, ids = tmp_path_factory.mktemp("where") / "lucene", [str(number) for number in range(COUNT)]
    records = [{"_id": name, "text": "text", "year": [1900 + i] if i % 5 else []} for i, name in enumerate(ids)]
    with ImpactIndexWriter(path, {"year": "number"}) as writer:
        writer.add(ids, [b"{}"] * COUNT, *rows(*[{1: 1}] * COUNT), records=records)
    with ImpactIndex.open(path) as opened:
        yield opened


@pytest.mark.parametrize(
    "condition", [["nix"], ["and", "2", "exists", "a"], ["exists", "a", "more"], [], ["number", "year", "x", "1"]]
)
def test_a_condition_that_makes_no_sense_is_refused(index: ImpactIndex, condition: list[str]) -> None:
    with pytest.raises((ValueError, JavaError)):
        index.where(condition)


def test_a_condition_of_thousands_of_parts(index: ImpactIndex) -> None:
    parts = [text for year in range(3000) for text in ("number", "year", f"{year}.0", f"{year}.0")]
    found = index.where(["or", "3000", *parts])
    assert np.flatnonzero(np.unpackbits(found.bits, bitorder="little")).tolist() == [i for i in DATED if i < 1100]
    assert found.count == index.where(["number", "year", "0.0", "2999.0"]).count


def test_without_an_order_they_come_as_they_were_written(index: ImpactIndex) -> None:
    for among, expected in ((None, list(range(COUNT))), (index.where(["exists", "year"]), DATED)):
        assert index.listed(among, None, 0, 20).tolist() == expected[:20]
        assert index.listed(among, None, len(expected) - 3, 20).tolist() == expected[-3:]
        assert index.listed(among, None, COUNT, 20).tolist() == []


def test_an_order_ends_when_it_is_late(index: ImpactIndex) -> None:
    with pytest.raises(TimeoutError):
        index.listed(None, Order("year", "number", descending=False), 0, 5, seconds=0.0)
    with raises(ValueError):
        index.listed(None, None, -1, 5)
