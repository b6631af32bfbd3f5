"""A search has one snapshot: what is written meanwhile is not in it."""

from pathlib import Path
from time import perf_counter

import numpy as np

from lightretriever.artifacts.documents.fields import FieldKind, Order
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.tiny import make_tiny_bundle
from tests.support.written import changeable

FIELDS: dict[str, FieldKind] = {"title": "keyword", "year": "number"}
COUNT = 70  # not whole bytes of bits


def change(engine: SearchEngine, number: int, title: str) -> Change:
    fields = {"title": title, "text": f"music zebra {number}", "year": 2000 + number}
    document = read_fields(f"z-{number}", fields, engine.bundle.manifest)
    vector = np.random.default_rng(number).standard_normal(16).astype(np.float32)
    return Change(document.id, document, vector / np.linalg.norm(vector), {"music": 50, "zebra": number + 1})


def test_a_search_sees_the_documents_that_lived_when_it_began(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary="words", documents=COUNT, fields=FIELDS)
    with bundle.sparse() as sparse:
        ids = sparse.ids()
    settings = Settings(live=tmp_path / "live", deadline_ms=60_000, warm_up_queries=1)
    with SearchEngine.open(bundle, settings) as engine:
        live = changeable(engine)
        live.write([change(engine, number, "old") for number in range(100)], perf_counter() + 60)
        live.write([Change("z-3"), Change(ids[1]), change(engine, 4, "old")], perf_counter() + 60)
        parts = engine.now()
        documents = parts.backends.documents
        before = documents.where(("keyword", "title", "1", "old"))
        assert before.count == 99
        assert documents.totals([None]) == [COUNT - 1 + 99]
        assert [documents.ordinal(one) for one in (ids[1], "z-3", ids[2])] == [None, None, 2]
        assert documents.ordinal("z-4") == COUNT + 100
        live.write([change(engine, number, "old") for number in range(100, 180)], perf_counter() + 60)

        query = parts.encoder.encode("music zebra", bundle.manifest.default_task, StageClock())
        expected = [COUNT + number for number in range(101) if number not in (3, 4)]
        for among, added in ((before, []), (None, [ordinal for ordinal in range(COUNT) if ordinal != 1])):
            outcomes = parts.backends.search(query, ["dense", "sparse"], 1000, among, perf_counter() + 60).outcomes
            found = {name: hits.value.ordinals.tolist() for name, hits in outcomes.items() if hits.value is not None}
            assert sorted(found["dense"]) == added + expected
            assert set(expected) <= set(found["sparse"]) <= set(added + expected)
        assert documents.totals([None, before], before) == [99, 99]
        assert documents.counts("title", before) == [("old", 99)]
        year = Order("year", "number", descending=True)
        assert documents.listed(before, year, 0, 2).tolist() == [COUNT + 99, COUNT + 98]
        assert documents.listed(before, None, 97, 9).tolist() == [COUNT + 99, COUNT + 100]
        assert documents.where(("keyword", "title", "1", "old")).count == 99
        assert documents.listed(None, year, 0, 1).tolist() == [COUNT + 99]

        documents = engine.now().documents.store
        assert engine.now() is engine.now() is not parts
        assert documents.where(("keyword", "title", "1", "old")).count == 179
        assert documents.listed(None, year, 0, 1).tolist() == [COUNT + 180]
