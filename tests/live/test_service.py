"""Documents written beside a bundle on this machine: what a cluster does otherwise, or does not do."""

import json
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.documents.fields import FieldKind, Order
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.artifacts.live.journal import Journal, Record
from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.collections.collections import Collections
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings, load_settings
from tests.service.live import live, live_bundles
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import wait_until
from tests.support.wordings import raises
from tests.support.written import KEY, NEW, READER, VECTOR, ask, changeable, found, impacts_of, lines, opened


@pytest.mark.parametrize(
    ("bad", "field", "message"),
    [
        ({"id": "b", "fields": NEW, "vector": [1.0]}, "lines.1.vector", "it has 1 values"),
        ({"id": "b"}, "lines.1", "fields are required, unless delete is true"),
        ({"id": "b", "delete": True, "fields": NEW}, "lines.1", "a line that deletes has neither"),
        ({"fields": NEW}, "lines.1.id", "required"),
        ({"id": " ", "delete": True}, "lines.1.id", '"_id" must be'),
        ({"id": 600 * "x", "fields": NEW}, "lines.1.id", '"_id" must be'),
    ],
)
def test_a_bad_line_is_told_before_anything_is_written(
    url: str, client: SearchClient, bad: dict[str, Any], field: str, message: str
) -> None:
    answer = lines(url, {"id": "good", "fields": NEW, "vector": VECTOR, "impacts": {"300": 5}}, bad)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["field"].startswith(field)
    assert message in error["message"]
    with pytest.raises(AnswerError):
        client.document("good")
    assert lines(url, key=KEY).status_code == 422
    headers = {"content-type": "application/x-ndjson", "if-match": '"1.0"'}
    answer = ask("POST", f"{url}/documents", KEY, headers, content=b'{"id": "good", "delete": true}')
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "if-match")
    assert lines(url, {"id": "good", "delete": True}, key=READER).status_code == 403


@pytest.mark.parametrize("guarded", [True, False])
def test_a_document_in_another_form_and_a_service_without_keys_are_told(
    bundle: Bundle, tmp_path: Path, url: str, guarded: bool
) -> None:
    if guarded:
        answer = ask("PUT", f"{url}/documents/a", KEY, json={"title": "Zebra", "text": "A zebra."})
        assert 'fields: the field is required: write {"title"' in answer.json()["detail"]
        assert "there are: fields, vector, " in lines(url, {"id": "a", "title": "Zebra"}).json()["detail"]
    else:
        with live_bundles(bundle.path, live=tmp_path / "live") as open_to_all:
            answer = ask("PUT", f"{open_to_all}/documents/a", KEY, json={"fields": NEW})
        assert (answer.status_code, "'api_keys_file'" in answer.json()["detail"]) == (404, True)


def test_every_process_follows_the_journal(bundle: Bundle, engine: SearchEngine, settings: Settings) -> None:
    """Another engine with the same folder stands for another process: they share nothing but the files. A document is
    read at once as it was written, though searches see it later: `If-Match` names the version that was read."""
    encoded: dict[str, Any] = {"vector": VECTOR, "impacts": impacts_of(engine, "zebra")}
    with opened(bundle, settings) as one, opened(bundle, settings) as other:
        for number in range(10):
            name, (writer, reader) = f"f-{number}", (one, other) if number % 2 else (other, one)
            version = writer.put_document(name, NEW, **encoded).version
            assert reader.document(name).version == version
            writer.delete_document(name)
            with pytest.raises(AnswerError) as caught:
                reader.document(name)
            assert caught.value.kind == "document_not_found"
            version = writer.put_document(name, NEW, **encoded, wait=True).version
            assert name in found(reader, "zebra", mode="sparse")
            assert reader.document(name).version == version
            reader.delete_document(name, version=version, wait=True)
            assert name not in found(writer, "zebra", mode="sparse")


def test_many_documents_are_told_and_too_many_refused(
    bundle: Bundle, tmp_path: Path, settings: Settings, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    impacts = impacts_of(engine, "zebra")
    own = settings.model_copy(update={"live": tmp_path / "live"})
    monkeypatch.setattr("lightretriever.artifacts.live.store._FEW", 2)
    monkeypatch.setattr("lightretriever.artifacts.live.store._SHARE", 60)
    monkeypatch.setattr("lightretriever.artifacts.live.store._MAX_WRITTEN", 3)
    with SearchEngine.open(bundle, own) as few, live(create_app(few)) as url:
        few.warm_up()
        with SearchClient(url, api_key=KEY, timeout_s=60) as client:
            for number in range(3):
                warning = httpx2.get(f"{url}/readyz", timeout=60).json().get("warning")
                assert (warning is None) == (number < 2)
                client.put_document("same", NEW, vector=VECTOR, impacts=impacts)
            assert warning is not None
            assert "2 documents are written beside the bundle, of at most 3. Make a bundle of all" in warning
            with raises(AnswerError, naming="no_room") as error:
                client.put_document("same", NEW, vector=VECTOR, impacts=impacts)
            assert (error.value.status, error.value.kind) == (507, "no_room")
            client.delete_document("same")
            assert "lightretriever_live_documents 3.0" in httpx2.get(f"{url}/metrics", timeout=60).text


def test_a_journal_that_can_not_be_followed_is_told(
    bundle: Bundle, tmp_path: Path, settings: Settings, engine: SearchEngine
) -> None:
    own = settings.model_copy(update={"live": tmp_path / "live"})
    with SearchEngine.open(bundle, own) as broken, live(create_app(broken)) as url:
        broken.warm_up()
        with SearchClient(url, api_key=KEY, timeout_s=60) as client:
            client.put_document("kept", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra"))
            with Journal(tmp_path / "live", bundle.manifest) as other, other.writing(perf_counter() + 60):
                record = Record("other", b"{}", np.ones(16, np.float32), {"no word": 0})  # nobody checked it
                with other.appending([record]):
                    pass
            wait_until(lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code != 200)
            with raises(AnswerError, naming="write_failed") as error:
                client.delete_document("kept")
            assert (error.value.status, error.value.kind) == (503, "write_failed")
            assert found(client, "zebra", mode="sparse")[0] == "kept"


def test_a_document_keeps_as_many_terms_as_those_of_the_bundle(tmp_path: Path, settings: Settings) -> None:
    bundle = make_tiny_bundle(tmp_path / "few", top_k=3, fields={"year": "number"})
    own = settings.model_copy(update={"live": tmp_path / "live"})
    with SearchEngine.open(bundle, own) as few:
        document = read_fields("cut", NEW, bundle.manifest)
        impacts = {"300": 5, "30": 5, "31": 5, "29": 1, "28": 9}
        vector = np.full(16, 0.25, np.float32)
        changeable(few).write([Change("cut", document, vector, impacts)], perf_counter() + 60, wait=False)
        assert {one.term: one.impact for one in few.terms("cut").terms} == {"28": 9, "30": 5, "31": 5}


def test_nothing_is_shown_of_a_deleted_document(bundle: Bundle, tmp_path: Path, settings: Settings) -> None:
    own = settings.model_copy(update={"live": tmp_path / "live"})
    with SearchEngine.open(bundle, own) as engine:
        store = engine.parts.backends.documents
        ids = [json.loads(raw)["_id"] for raw in store.documents(np.arange(store.count))]
        changeable(engine).write([Change(one) for one in ids if one != "music"], perf_counter() + 60)
    with SearchEngine.open(bundle, own) as engine:
        assert engine.examples == ["Terminal music player"]
        assert len(engine.parts.documents.probes(100)) == 1
        engine.warm_up()
        assert [hit.id for hit in engine.search(SearchRequest(query="search engine", k=100)).hits] == ["music"]


def test_one_collection_has_a_journal(bundle: Bundle, tmp_path: Path) -> None:
    two = {"one": bundle.path, "two": bundle.path}
    with raises(SettingsError, naming="live"), Collections.open(two, Settings(live=tmp_path)):
        pass
    cluster = {"opensearch_url": "http://x", "opensearch_index": "y"}
    with raises(SettingsError, naming="live"):
        load_settings(None, {"live": tmp_path, **cluster})


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
        parts, old = engine.now(), ("keyword", "title", "1", "old")
        documents = parts.backends.documents
        before = documents.where(old)
        assert [documents.ordinal(one) for one in (ids[1], "z-3", ids[2], "z-4")] == [None, None, 2, COUNT + 100]
        live.write([change(engine, number, "old") for number in range(100, 180)], perf_counter() + 60)

        query = parts.encoder.encode("music zebra", bundle.manifest.default_task, StageClock())
        expected = [COUNT + number for number in range(101) if number not in (3, 4)]
        for among, added in ((before, []), (None, [ordinal for ordinal in range(COUNT) if ordinal != 1])):
            outcomes = parts.backends.search(query, ["dense", "sparse"], 1000, among, perf_counter() + 60).outcomes
            hits = {name: one.value.ordinals.tolist() for name, one in outcomes.items() if one.value is not None}
            assert sorted(hits["dense"]) == added + expected
            assert set(expected) <= set(hits["sparse"]) <= set(added + expected)
        assert documents.totals([None, before]) == [COUNT - 1 + 99, 99]
        assert documents.counts("title", before) == [("old", 99)]
        year = Order("year", "number", descending=True)
        assert documents.listed(None, year, 0, 2).tolist() == [COUNT + 99, COUNT + 98]

        documents = engine.now().documents.store
        assert engine.now() is engine.now() is not parts
        assert documents.where(old).count == 179
        assert documents.listed(None, year, 0, 1).tolist() == [COUNT + 180]
