"""Documents written and deleted by other libraries, with the libraries themselves, over a real service."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from haystack import Document as HaystackDocument
from haystack import Pipeline
from haystack.components.writers import DocumentWriter
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import Secret
from langchain_core.documents import Document
from llama_index.core.schema import TextNode

from lightretriever.service.client import AnswerError, ClientError, SearchClient
from lightretriever.service.client.adapters import haystack, langchain, llama_index
from lightretriever.service.client.hits import SCORES
from lightretriever.service.client.writes import document_of
from tests.live.test_upsert import Place
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, READER

pytestmark = pytest.mark.slow

MODULE = "lightretriever.service.client.adapters.haystack"
TEXT = "A zebra plays the xylophone."
FIELDS = {"title": "Zebra", "year": 2026}
ENCODED: dict[str, Any] = {**FIELDS, "vector": [0.25] * 16, "impacts": {"300": 5}}
VARIABLE = "LIGHTRETRIEVER_API_KEY"

Add = Callable[[list[tuple[str, str, dict[str, Any]]]], Any]
Delete = Callable[[list[str]], Any]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("adapters")
    bundle = make_tiny_bundle(folder / "tiny", fields={"year": "number"})
    with live_bundles(bundle.path, live=folder / "live", api_keys_file=keys_file(folder, *ENTRIES)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[SearchClient]:
    with SearchClient(url, api_key=KEY, timeout_s=120) as client:
        yield client


def store_of(url: str) -> haystack.SearchDocumentStore:
    return haystack.SearchDocumentStore(url, api_key=Secret.from_env_var(VARIABLE), timeout_s=120)


def opened(library: str, client: SearchClient, url: str) -> tuple[Add, Delete]:
    """What adds documents by a library, or by its calls for asyncio, and what deletes them."""
    retriever, index, store = (
        langchain.SearchRetriever(client=client),
        llama_index.SearchRetriever(client),
        store_of(url),
    )
    makers: dict[str, Callable[[str, str, dict[str, Any]], Any]] = {
        "langchain": lambda name, text, metadata: Document(id=name, page_content=text, metadata=metadata),
        "llama_index": lambda name, text, metadata: TextNode(id_=name, text=text, metadata=metadata),
        "haystack": lambda name, text, metadata: HaystackDocument(id=name, content=text, meta=metadata),
    }
    calls: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "langchain": (retriever.add_documents, retriever.delete),
        "langchain async": (retriever.aadd_documents, retriever.adelete),
        "llama_index": (index.add, index.delete_nodes),
        "llama_index async": (index.async_add, index.adelete_nodes),
        "haystack": (store.write_documents, store.delete_documents),
        "haystack async": (store.write_documents_async, store.delete_documents_async),
    }
    add, delete = calls[library]
    make, run = makers[library.removesuffix(" async")], asyncio.run if library.endswith("async") else lambda done: done
    return lambda given: run(add([make(*one) for one in given])), lambda ids: run(delete(ids))


ALL = [f"{library}{kind}" for library in ("langchain", "llama_index", "haystack") for kind in ("", " async")]


@pytest.mark.parametrize("library", ALL)
def test_documents_with_vector_and_impacts(
    library: str, client: SearchClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    add, delete = opened(library, client, url)
    add([(f"new-{number}", TEXT, ENCODED) for number in range(40)])
    assert client.document("new-39").fields == {**FIELDS, "text": TEXT}
    hits = client.search("zebra", filter={"field": "year", "eq": 2026}, k=100).hits
    assert {hit.id for hit in hits} == {f"new-{number}" for number in range(40)}
    add([("new-1", TEXT, {**FIELDS, "year": 1999})])  # vector and impacts stay
    assert client.document("new-1").fields["year"] == 1999
    for wrong in ({**ENCODED, "vector": [1.0]}, FIELDS):
        with raises(AnswerError):
            add([("new-2", TEXT, ENCODED), ("wrong", TEXT, wrong)])
    with raises(ClientError):
        add([("wrong", TEXT, {**FIELDS, "impacts": {"300": 5}})])
    delete([f"new-{number}" for number in range(40)])
    delete(["new-0"])
    assert not client.search("zebra", filter={"field": "year", "eq": 2026}).hits


@pytest.mark.parametrize("library", ALL)
def test_a_key_for_reading_is_told_what_it_lacks(library: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, READER)
    with SearchClient(url, api_key=READER) as client:
        add, delete = opened(library, client, url)
        calls: list[Callable[[], Any]] = [
            lambda: add([("new", TEXT, ENCODED)]),
            lambda: add([("new", TEXT, FIELDS)]),
            lambda: delete(["music"]),
        ]
        for call in calls:
            with raises(AnswerError, naming="reader") as error:
                call()
            assert (error.value.status, error.value.kind) == (403, "forbidden")


def test_a_service_with_a_model_encodes_what_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    place = Place(tmp_path, "expand")
    own = {"live": tmp_path / "live", "api_keys_file": keys_file(tmp_path, *ENTRIES), "recipe": place.recipe}
    with live_bundles(place.bundle.path, **own) as url, SearchClient(url, api_key=KEY, timeout_s=120) as client:
        for library in ("langchain", "llama_index", "haystack"):
            add, delete = opened(library, client, url)
            add([("new", "A zebra crosses the road.", {"title": "Zebra"})])
            assert client.search("zebra crosses the road", k=1).hits[0].id == "new"
            delete(["new"])


def test_what_a_search_gave_can_be_written_back(client: SearchClient, url: str) -> None:
    known = client.search("terminal music player", k=1).hits[0].id
    before = client.document(known)
    retriever = langchain.SearchRetriever(client=client, request={"k": 1})
    (found,) = retriever.invoke("terminal music player")
    assert retriever.add_documents([found]) == [known]
    assert client.document(known).fields == before.fields
    (node,) = llama_index.SearchRetriever(client, request={"k": 1}).retrieve("terminal music player")
    llama_index.SearchRetriever(client).add([node.node])
    assert client.document(known).fields == before.fields
    metadata = {**dict.fromkeys(SCORES), "document_score": "A+", "document_type": "x"}
    assert document_of("a", "t", metadata, "text")["fields"] == {"score": "A+", "document_type": "x", "text": "t"}
    assert document_of("a", "t", {"score": "A+"}, "body")["fields"] == {"score": "A+", "body": "t"}


def test_langchain_names_documents(client: SearchClient) -> None:
    retriever = langchain.SearchRetriever(client=client)
    nameless = [Document(page_content=TEXT, metadata=ENCODED) for _ in range(2)]
    made = retriever.add_documents(nameless)
    assert len(set(made)) == 2
    assert client.document(made[0]).fields["text"] == TEXT
    assert retriever.delete(made)
    assert not retriever.delete(made)
    assert retriever.add_documents(nameless[:1], ids=["named"]) == ["named"]
    assert asyncio.run(retriever.aadd_documents(nameless[:1], ids=["other"])) == ["other"]
    assert retriever.delete(["named", "other"])
    with raises(ClientError):
        retriever.add_documents(nameless, ids=["a"])


def test_a_haystack_pipeline_writes_and_can_be_saved(
    client: SearchClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    pipeline = Pipeline()
    # It asks the store for nothing but writing.
    pipeline.add_component("write", DocumentWriter(cast(Any, store_of(url))))
    saved = pipeline.dumps()
    assert KEY not in saved
    again = Pipeline.loads(saved, allowed_modules=[MODULE])
    documents = [HaystackDocument(id="new", content=TEXT, meta=ENCODED)]
    assert again.run({"write": {"documents": documents}}) == {"write": {"documents_written": 1}}
    assert asyncio.run(again.run_async({"write": {"documents": documents}})) == {"write": {"documents_written": 1}}
    assert client.document("new").fields["text"] == TEXT
    with raises(ClientError, naming="SKIP"):
        store_of(url).write_documents(documents, DuplicatePolicy.SKIP)
    store_of(url).delete_documents(["new"])
