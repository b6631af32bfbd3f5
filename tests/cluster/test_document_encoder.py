"""Documents written as fields alone, which the service encodes with the recipe and the tiny model of the bundle."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.errors import ResumeError
from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.parts import ENCODE_DOCUMENT
from lightretriever.service.settings import Settings, load_settings
from tests.cluster.test_upsert import NAME, Place
from tests.service.live import live, warm
from tests.support.cluster import served_by
from tests.support.keys import keys_file
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, opened

FIELDS = {"title": "Zebra crossing", "text": "A zebra crosses the road over the network of music files."}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Place:
    return Place(tmp_path_factory.mktemp("learned"), cluster, "learned")


@pytest.fixture(scope="module")
def settings(place: Place) -> Settings:
    keys = keys_file(place.recipe.parent, *ENTRIES)
    return served_by(place.cluster, NAME, api_keys_file=keys, recipe=place.recipe)


@pytest.fixture(scope="module")
def engine(place: Place, settings: Settings) -> Iterator[SearchEngine]:
    with warm(place.bundle, settings) as engine:
        yield engine


def test_a_document_gets_the_vector_and_the_impacts_that_upsert_gives(place: Place, client: SearchClient) -> None:
    written = client.put_document("put", FIELDS, wait=True)
    assert (written.result, written.encoded, written.cut) == ("created", True, False)
    place.write([*place.lines(), {"_id": "upserted", **FIELDS}])
    assert place.upsert()["encoded"] == 1
    one, other = place.source("put"), place.source("upserted")
    assert (one["vector"], one["impacts"]) == (other["vector"], other["impacts"])
    assert "put" in [hit.id for hit in client.search("zebra crosses the road", k=100).hits]
    assert client.info().document_model is not None
    fields = client.put_document("put", {**FIELDS, "topic": "t1"}, version=written.version)
    assert (fields.result, fields.encoded) == ("changed", False)
    assert place.source("put")["vector"] == one["vector"]
    text = client.put_document("put", {"text": "Another text about music. " * 200}, version=fields.version)
    assert (text.encoded, text.cut) == (True, True)
    assert place.source("put")["vector"] != one["vector"]
    client.delete_document("put", wait=True)


def test_documents_wait_for_the_model_within_bounds_and_searches_do_not(
    place: Place, settings: Settings, client: SearchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "encode_timeout_s", 0.5)
    own = settings.model_copy(update={"deadline_ms": 3_000, "search_threads": 2})
    with SearchEngine.open(place.bundle, own) as engine, live(create_app(engine)) as url:
        engine.warm_up()
        ended = threading.Event()
        call = engine.submit(ended.wait, ENCODE_DOCUMENT)  # another document
        late = list[AnswerError]()

        def put(number: int) -> None:
            with SearchClient(url, api_key=KEY, timeout_s=60, attempts=1) as one, pytest.raises(AnswerError) as error:
                one.put_document(f"late-{number}", FIELDS)
            late.append(error.value)

        threads = ThreadPoolExecutor(4)
        try:
            putting = threads.map(put, range(4))
            with SearchClient(url, api_key=KEY, timeout_s=60, attempts=1) as searching:
                assert searching.search("music", k=3).hits
                list(putting)
                assert searching.ready()
                assert len(late) == 4
                assert {one.kind for one in late} <= {"deadline_exceeded", "not_ready"}
                with raises(AnswerError):
                    searching.put_document("refused", FIELDS)
        finally:
            ended.set()
            call.future.result()
            threads.shutdown()
        with SearchClient(url, api_key=KEY, timeout_s=60) as again:
            assert again.put_document("in time", FIELDS).encoded
            again.delete_document("in time", wait=True)
            for number in range(4):
                with raises(AnswerError):
                    again.document(f"late-{number}")


def test_a_service_without_a_model_says_what_is_missing(place: Place, settings: Settings) -> None:
    own = settings.model_copy(update={"recipe": None})
    with opened(place.bundle, own) as client:
        assert client.info().document_model is None
        with pytest.raises(AnswerError) as error:
            client.put_document("new", FIELDS)
    assert (error.value.status, error.value.kind) == (422, "invalid_request")
    for part in ("vector: is missing", "the document is new", "`lightretriever upsert`", "the setting `recipe`"):
        assert part in str(error.value)


def test_a_recipe_that_can_not_be_used_ends_the_start(place: Place, settings: Settings) -> None:
    with raises(SettingsError, naming="recipe.yaml"):
        load_settings(arguments={"recipe": place.recipe})
    backbone = place.recipe.with_name("work") / "backbone.json"
    begun = backbone.read_text()
    backbone.write_text(begun.replace('"fingerprint": "', '"fingerprint": "other '))
    try:
        with raises(ResumeError, naming="backbone.json"):
            SearchEngine.open(place.bundle, settings)
    finally:
        backbone.write_text(begun)


_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from lightretriever.service.cli import main
main()
"""


def test_a_service_without_the_pipeline_says_what_is_missing(place: Place, settings: Settings) -> None:
    where = {"OPENSEARCH_URL": place.cluster.name, "OPENSEARCH_INDEX": NAME}
    environment: dict[str, Any] = {f"LIGHTRETRIEVER_{name}": value for name, value in where.items()}
    command = ["serve", str(place.bundle.path), "--port", "0", "--recipe", str(Path(place.recipe))]
    program = [sys.executable, "-c", _WITHOUT_TORCH, *command]
    done = subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs torch, which is not installed" in done.stderr
    assert "pip install 'lightretriever-search[pipeline]'" in done.stderr
