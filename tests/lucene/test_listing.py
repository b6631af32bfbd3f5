"""Documents in the order of a field, and counts over all of them, against the same in plain Python."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightretriever.artifacts.corpus.fields import FieldKind, Order
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter

from tests.lucene.support import random_collection

COUNT = 3000
FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "published": "date"}
Record = dict[str, Any]


def records() -> list[Record]:
    random = np.random.default_rng(3)
    made: list[Record] = []
    for i in range(COUNT):
        record: Record = {"_id": f"doc-{i:05}", "text": "text"}
        if i % 7:
            record["source"] = ["a", "b", "\U00010000", ["a", "ü", "\uffee"]][i % 4]
        if i % 5:
            record["year"] = float(random.integers(-30, 30)) if i % 2 else [1.5, -3]
        if i % 3:
            record["published"] = f"{1955 + i % 30}-01-01"
        made.append(record)
    return made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    path: Path = tmp_path_factory.mktemp("listing") / "lucene"
    collection = random_collection(count=COUNT, vocabulary=60, seed=2)
    with ImpactIndexWriter(path, FIELDS) as writer:
        writer.add(collection.ids, [json.dumps(one).encode() for one in records()], *collection.rows(0, COUNT))
    with ImpactIndex.open(path) as opened:
        yield opened


def values(record: Record, field: str) -> list[Any]:
    value = record.get(field, [])
    return value if isinstance(value, list) else [value]


def in_order(chosen: list[int], field: str, *, descending: bool) -> list[int]:
    made, first = records(), max if descending else min
    keys = {i: first(found) for i in chosen if (found := values(made[i], field))}
    known = sorted(keys, key=keys.__getitem__, reverse=descending)
    return [*known, *(i for i in chosen if i not in keys)]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("field", list(FIELDS))
@pytest.mark.parametrize("condition", [None, ["keyword", "source", "1", "a"], ["keyword", "source", "1", "nix"]])
def test_documents_come_in_the_order_of_a_field(
    index: ImpactIndex, field: str, descending: bool, condition: list[str] | None
) -> None:
    among = None if condition is None else index.where(condition)
    chosen = [i for i, one in enumerate(records()) if condition is None or condition[-1] in values(one, "source")]
    expected = in_order(chosen, field, descending=descending)
    order = Order(field, FIELDS[field], descending)
    assert index.listed(among, order, 0, COUNT).tolist() == expected
    assert index.listed(among, order, 17, 10).tolist() == expected[17:27]
    assert index.listed(among, order, len(expected), 5).tolist() == []
    assert index.totals([among]) == [len(expected)]
    both = [i for i in chosen if "year" in records()[i]]
    assert index.totals([None, index.where(["exists", "year"]), among], among) == [
        *(len(chosen), len(both), len(chosen))
    ]


@pytest.mark.parametrize("condition", [None, ["exists", "year"]])
def test_without_an_order_they_come_as_they_were_written(index: ImpactIndex, condition: list[str] | None) -> None:
    among = None if condition is None else index.where(condition)
    expected = [i for i, one in enumerate(records()) if condition is None or "year" in one]
    assert index.listed(among, None, 0, 20).tolist() == expected[:20]
    assert index.listed(among, None, len(expected) - 3, 20).tolist() == expected[-3:]
    assert index.listed(among, None, COUNT, 20).tolist() == []


@pytest.mark.parametrize("condition", [None, ["exists", "year"], ["keyword", "source", "1", "nix"]])
def test_values_are_counted_over_all_documents(index: ImpactIndex, condition: list[str] | None) -> None:
    among = None if condition is None else index.where(condition)
    chosen = [one for one in records() if condition is None or (condition[0] == "exists" and "year" in one)]
    counts = Counter(value for one in chosen for value in values(one, "source"))
    expected = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    assert index.counts_among("source", among) == expected
    ordinals = index.listed(among, None, 0, COUNT)
    assert index.counts("source", ordinals) == expected


def test_an_order_ends_when_it_is_late(index: ImpactIndex) -> None:
    with pytest.raises(TimeoutError):
        index.listed(None, Order("year", "number", descending=False), 0, 5, seconds=0.0)
    with pytest.raises(ValueError, match="offset is -1"):
        index.listed(None, None, -1, 5)
