"""A bundle of a bundle and its journal, swapped in while documents are written."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.live.compact import compact
from lightretriever.artifacts.live.documents import Change
from lightretriever.artifacts.live.journal import Journal
from lightretriever.service.collections.collections import EngineHolder
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.live.mirror import Mirror
from tests.service.process import flip
from tests.support.commands import summary_of
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises
from tests.support.written import changeable

SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("compact") / "tiny"
    return make_tiny_bundle(path, vocabulary="tokens", documents=60, fields={"year": "number"}, idf=True)


def write(engine: SearchEngine, changes: list[Change]) -> None:
    changeable(engine).write(changes, perf_counter() + 60, wait=False)


def documents(bundle: Bundle) -> dict[str, bytes]:
    with bundle.sparse() as sparse:
        raws = sparse.documents(np.arange(sparse.count))
    return {json.loads(raw)["_id"]: raw for raw in raws}


def found(engine: SearchEngine) -> dict[str, float]:
    """The legs' own scores: what fusion makes of them depends on figures of the bundle."""
    scores = dict[str, float]()
    for mode in ("dense", "sparse"):
        asked = {"query": "zebra music terminal", "mode": mode, "k": 1000, "candidates": 1000}
        for hit in engine.search(SearchRequest.model_validate(asked)).hits:
            leg = hit.dense if mode == "dense" else hit.sparse
            assert leg is not None
            scores[hit.id] = scores.get(hit.id, 0.0) + leg.score
    return scores


def test_a_compacted_bundle_is_what_a_rebuilt_one_is(bundle: Bundle, tmp_path: Path) -> None:
    mirror = Mirror(bundle, 5)
    with SearchEngine.open(bundle, SETTINGS.model_copy(update={"live": tmp_path / "live"})) as engine:
        for _ in range(40):
            write(engine, [mirror.change()])
        before = found(engine)
    summary = summary_of("compact", bundle.path, "--live", tmp_path / "live", "--output", tmp_path / "new")
    assert verify_bundle(tmp_path / "new") == []
    made = Bundle.open(tmp_path / "new")
    assert made.manifest.live is not None
    assert (summary["documents"], summary["position"]) == (len(mirror.rows), made.manifest.live.position)
    rebuilt = mirror.rebuilt(tmp_path / "rebuilt")
    assert list(documents(made)) == list(mirror.rows)
    assert documents(made) == documents(rebuilt)
    assert np.array_equal(made.dense().vectors(np.arange(5)), rebuilt.dense().vectors(np.arange(5)))
    before_table, after_table = (one.table("fact").rows(np.arange(300)) for one in (bundle, made))
    assert np.array_equal(before_table, after_table)
    with SearchEngine.open(made, SETTINGS) as alone:
        assert found(alone) == pytest.approx(before, rel=1e-6)


def test_writes_during_a_compaction_and_a_swap_are_neither_lost_nor_double(bundle: Bundle, tmp_path: Path) -> None:
    mirror, over = Mirror(bundle, 6), Event()
    served = tmp_path / "served"
    served.symlink_to(bundle.path)
    own = SETTINGS.model_copy(update={"live": tmp_path / "live"})

    def keep_writing(holder: EngineHolder) -> int:
        written = 0
        while not over.is_set():
            with holder.lease() as engine:
                write(engine, [mirror.change()])
            written += 1
        return written

    with EngineHolder.open(served, own) as holder, ThreadPoolExecutor(1) as thread:
        holder.engine.warm_up()
        holder.start()
        writing = thread.submit(keep_writing, holder)
        source = bundle
        for number in range(3):
            source, contained = compact(source, tmp_path / "live", tmp_path / f"new-{number}")
            flip(served, source.path)
            assert asyncio.run(holder.reload())
            assert holder.engine.bundle.manifest.digest == source.manifest.digest
            assert holder.engine.bundle.manifest.live == contained
        over.set()
        assert writing.result() > 10
        with holder.lease() as engine:
            write(engine, [mirror.change()])
        gone = f"begins behind change {contained.position} and"  # those before are gone
        with pytest.raises(JournalError, match=gone):
            Journal(tmp_path / "live", bundle.manifest)
        answers = found(holder.engine)
        assert answers.keys() <= mirror.rows.keys()
        for document_id, row in mirror.rows.items():
            assert holder.engine.document(document_id).fields == row.fields
        rebuilt = mirror.rebuilt(tmp_path / "rebuilt")
        with SearchEngine.open(rebuilt, SETTINGS) as other:
            assert answers == pytest.approx(found(other), rel=1e-6)


def test_a_bundle_without_the_changes_keeps_them(bundle: Bundle, tmp_path: Path) -> None:
    other = make_tiny_bundle(tmp_path / "other", vocabulary="tokens", documents=50, fields={"year": "number"}, idf=True)
    own = SETTINGS.model_copy(update={"live": tmp_path / "live"})
    mirror = Mirror(bundle, 7)
    mirror.rows["mine"] = mirror.document()
    served = tmp_path / "served"
    served.symlink_to(bundle.path)
    with EngineHolder.open(served, own) as holder:
        holder.start()
        write(holder.engine, [mirror.whole("mine"), Change("music")])
        flip(served, other.path)
        assert asyncio.run(holder.reload())
        assert holder.engine.document("mine").fields == mirror.rows["mine"].fields
        assert "music" not in found(holder.engine)
        write(holder.engine, [Change("mine")])
    with SearchEngine.open(bundle, own) as again:
        assert not {"mine", "music"} & found(again).keys()


def test_a_bundle_before_the_journal_begins_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    own = SETTINGS.model_copy(update={"live": tmp_path / "live"})
    with SearchEngine.open(bundle, own) as engine:
        write(engine, [Change("music")])
    made, _ = compact(bundle, tmp_path / "live", tmp_path / "new")
    with SearchEngine.open(bundle, own):  # both are well until the new one is written to
        pass
    with SearchEngine.open(made, own) as engine:
        write(engine, [Change("editor")])
    with raises(JournalError):
        SearchEngine.open(bundle, own)
    with SearchEngine.open(made, own) as engine:
        assert not {"music", "editor"} & found(engine).keys()


def test_a_folder_without_a_journal_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with raises(JournalError):
        compact(bundle, tmp_path / "typo", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
