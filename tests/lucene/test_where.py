"""Conditions on declared fields, orders by them and counts of them, against the same in plain Python."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.documents.fields import FieldKind, Order
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from tests.lucene.support import Collection, named, query, random_collection
from tests.support.wordings import raises

COUNT = 10_000
FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "published": "date"}
Record = dict[str, Any]


@cache
def records() -> list[Record]:
    random = np.random.default_rng(5)
    made: list[Record] = []
    for i in range(COUNT):
        record: Record = {"_id": f"doc-{i:05}", "text": "text"}
        if i % 7:
            record["source"] = ["a", "b", "c", "\U00010000", ["a", "ü", "\uffee"]][i % 5]
        if i % 5:
            record["year"] = float(random.integers(1990, 2030)) if i % 2 else [1.5, -3]
        if i % 3:
            record["published"] = f"{1955 + i % 60}-01-01"
        made.append(record)
    return made


@pytest.fixture(scope="module")
def collection() -> Collection:
    return random_collection(count=COUNT, vocabulary=60, seed=2)


@pytest.fixture(scope="module")
def index(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    path = tmp_path_factory.mktemp("where") / "lucene"
    documents = [json.dumps(record).encode() for record in records()]
    with ImpactIndexWriter(path, FIELDS) as writer:
        writer.add(collection.ids, documents, *collection.rows(0, COUNT), records=records())
    with ImpactIndex.open(path) as opened:
        yield opened


def values(record: Record, field: str) -> list[Any]:
    value = record.get(field, [])
    return value if isinstance(value, list) else [value]


CONDITIONS: dict[str, tuple[list[str], Callable[[Record], bool]]] = {
    "keyword": (["keyword", "source", "1", "a"], lambda r: "a" in values(r, "source")),
    "keywords": (["keyword", "source", "2", "ü", "c"], lambda r: bool({"ü", "c"} & {*values(r, "source")})),
    "number": (["number", "year", "2000.0", "2009.0"], lambda r: any(2000 <= y <= 2009 for y in values(r, "year"))),
    "numbers": (
        ["numbers", "year", "3", "2009.0", "1994.0", "0.5"],
        lambda r: bool({2009, 1994, 0.5} & {*values(r, "year")}),
    ),
    "open end": (["number", "year", "-Infinity", "0.0"], lambda r: any(y <= 0 for y in values(r, "year"))),
    "date": (
        ["date", "published", "1262304000000", "1293840000000"],  # 2010-01-01 to 2011-01-01
        lambda r: any("2010-01-01" <= d <= "2011-01-01" for d in values(r, "published")),
    ),
    "exists": (["exists", "source"], lambda r: bool(values(r, "source"))),
    "exists, number": (["exists", "year"], lambda r: bool(values(r, "year"))),
    "not": (["not", "exists", "published"], lambda r: not values(r, "published")),
    "and": (
        ["and", "2", "keyword", "source", "1", "b", "not", "number", "year", "1990.0", "2010.0"],
        lambda r: "b" in values(r, "source") and not any(1990 <= y <= 2010 for y in values(r, "year")),
    ),
    "or": (
        ["or", "2", "keyword", "source", "1", "b", "not", "exists", "year"],
        lambda r: "b" in values(r, "source") or not values(r, "year"),
    ),
    "none": (["keyword", "source", "1", "nix"], lambda r: False),
    "ids": (["ids", "3", "doc-00003", "nobody", "doc-09999"], lambda r: r["_id"] in ("doc-00003", "doc-09999")),
    "not ids": (["not", "ids", "1", "doc-00003"], lambda r: r["_id"] != "doc-00003"),
    "another field": (["exists", "nix"], lambda r: False),
    "all": (["not", "exists", "nix"], lambda r: True),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_holds_for_the_right_documents(index: ImpactIndex, collection: Collection, name: str) -> None:
    condition, holds = CONDITIONS[name]
    expected = np.array([holds(record) for record in records()])
    found = index.where(condition)
    bits = np.unpackbits(found.bits, bitorder="little")
    np.testing.assert_array_equal(bits[:COUNT], expected)
    assert not bits[COUNT:].any()
    assert found.count == expected.sum()
    for terms, weights in map(query, ({3: 1.3}, {3: 1.0, 17: 2.0, 40: 0.5}, {3: 2.0, 5: 0.4, 17: 0.7, 40: 0.1})):
        every, scores = collection.best(terms, weights, COUNT)
        for k in (1, 10, COUNT):
            ordinals, best = index.search(named(terms), weights, k, found)
            keep = expected[every]
            np.testing.assert_array_equal(ordinals, every[keep][:k])
            np.testing.assert_array_equal(best, scores[keep][:k])


@pytest.mark.parametrize(
    "condition", [["nix"], ["and", "2", "exists", "a"], ["exists", "a", "more"], [], ["number", "year", "x", "1"]]
)
def test_a_condition_that_makes_no_sense_is_refused(index: ImpactIndex, condition: list[str]) -> None:
    with pytest.raises((ValueError, JavaError)):
        index.where(condition)


def test_a_condition_of_thousands_of_parts(index: ImpactIndex) -> None:
    parts = [text for year in range(3000) for text in ("number", "year", f"{year}.0", f"{year}.0")]
    assert index.where(["or", "3000", *parts]).count == index.where(["number", "year", "1990.0", "2999.0"]).count


def test_without_an_order_they_come_as_they_were_written(index: ImpactIndex) -> None:
    condition, holds = CONDITIONS["exists, number"]
    for among, one in ((None, lambda _: True), (index.where(condition), holds)):
        expected = [place for place, record in enumerate(records()) if one(record)]
        assert index.listed(among, None, 0, 20).tolist() == expected[:20]
        assert index.listed(among, None, len(expected) - 3, 20).tolist() == expected[-3:]
        assert index.listed(among, None, COUNT, 20).tolist() == []


def test_an_order_ends_when_it_is_late(index: ImpactIndex) -> None:
    with pytest.raises(TimeoutError):
        index.listed(None, Order("year", "number", descending=False), 0, 5, seconds=0.0)
    with raises(ValueError):
        index.listed(None, None, -1, 5)
