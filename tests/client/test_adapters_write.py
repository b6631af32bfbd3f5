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
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError, ClientError, SearchClient
from lightretriever.service.client.adapters import haystack, langchain, llama_index
from lightretriever.service.client.hits import SCORES
from lightretriever.service.client.writes import document_of
from lightretriever.service.http.api_keys import new_key
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from llama_index.core.schema import TextNode

from tests.live.test_upsert import Place
from tests.service.live import live
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle

pytestmark = pytest.mark.slow

KEY, ENTRY = new_key("both", ["search", "admin"])
READER, READS = new_key("reader", ["search"])
MODULE = "lightretriever.service.client.adapters.haystack"
TEXT = "A zebra plays the xylophone."
FIELDS = {"title": "Zebra", "year": 2026}
ENCODED: dict[str, Any] = {**FIELDS, "vector": [0.25] * 16, "impacts": {"300": 5}}
VARIABLE = "LIGHTRETRIEVER_API_KEY"

Add = Callable[[list[tuple[str, str, dict[str, Any]]]], Any]
Delete = Callable[[list[str]], Any]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("adapters") / "tiny", fields={"year": "number"})


def settings(folder: Path, **more: Any) -> Settings:
    keys = keys_file(folder, ENTRY, READS)
    return Settings(live=folder / "live", deadline_ms=60_000, warm_up_queries=1, watch_s=0, api_keys_file=keys, **more)


@pytest.fixture(scope="module")
def url(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with SearchEngine.open(bundle, settings(tmp_path_factory.mktemp("url"))) as engine, live(create_app(engine)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[SearchClient]:
    with SearchClient(url, api_key=KEY, timeout_s=120) as client:
        yield client


def of_langchain(client: SearchClient, url: str) -> tuple[Add, Delete]:
    retriever = langchain.SearchRetriever(client=client)
    return (
        lambda given: retriever.add_documents([Document(id=a, page_content=b, metadata=c) for a, b, c in given]),
        retriever.delete,
    )


def of_langchain_async(client: SearchClient, url: str) -> tuple[Add, Delete]:
    retriever = langchain.SearchRetriever(client=client)
    return (
        lambda given: asyncio.run(
            retriever.aadd_documents(
                [Document(page_content=b, metadata=c) for _, b, c in given], ids=[a for a, *_ in given]
            )
        ),
        lambda ids: asyncio.run(retriever.adelete(ids)),
    )


def of_llama_index(client: SearchClient, url: str) -> tuple[Add, Delete]:
    retriever = llama_index.SearchRetriever(client)
    return (
        lambda given: retriever.add([TextNode(id_=a, text=b, metadata=c) for a, b, c in given]),
        retriever.delete_nodes,
    )


def of_llama_index_async(client: SearchClient, url: str) -> tuple[Add, Delete]:
    retriever = llama_index.SearchRetriever(client)
    return (
        lambda given: asyncio.run(retriever.async_add([TextNode(id_=a, text=b, metadata=c) for a, b, c in given])),
        lambda ids: asyncio.run(retriever.adelete_nodes(ids)),
    )


def store_of(client: SearchClient, url: str) -> haystack.SearchDocumentStore:
    return haystack.SearchDocumentStore(url, api_key=Secret.from_env_var(VARIABLE), timeout_s=120)


def of_haystack(client: SearchClient, url: str) -> tuple[Add, Delete]:
    store = store_of(client, url)
    return (
        lambda given: store.write_documents([HaystackDocument(id=a, content=b, meta=c) for a, b, c in given]),
        store.delete_documents,
    )


def of_haystack_async(client: SearchClient, url: str) -> tuple[Add, Delete]:
    store = store_of(client, url)
    return (
        lambda given: asyncio.run(
            store.write_documents_async([HaystackDocument(id=a, content=b, meta=c) for a, b, c in given])
        ),
        lambda ids: asyncio.run(store.delete_documents_async(ids)),
    )


ALL = [of_langchain, of_langchain_async, of_llama_index, of_llama_index_async, of_haystack, of_haystack_async]


@pytest.mark.parametrize("opened", ALL)
def test_documents_with_vector_and_impacts(
    opened: Callable[..., tuple[Add, Delete]], client: SearchClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    add, delete = opened(client, url)
    add([(f"new-{number}", TEXT, ENCODED) for number in range(40)])
    assert client.document("new-39").fields == {**FIELDS, "text": TEXT}
    hits = client.search("zebra", filter={"field": "year", "eq": 2026}, k=100).hits
    assert {hit.id for hit in hits} == {f"new-{number}" for number in range(40)}
    add([("new-1", TEXT, {**FIELDS, "year": 1999})])  # vector and impacts stay
    assert client.document("new-1").fields["year"] == 1999
    for wrong, message in (
        ({**ENCODED, "vector": [1.0]}, r"^documents\.wrong\.vector: it has 1 values"),
        (FIELDS, r"^documents\.wrong\.vector: is missing, but the document is new.*This service has no model"),
    ):
        with pytest.raises(AnswerError, match=message):
            add([("new-2", TEXT, ENCODED), ("wrong", TEXT, wrong)])
    with pytest.raises(ClientError, match=r"1 documents were refused: 'wrong': .*the document is new"):
        add([("wrong", TEXT, {**FIELDS, "impacts": {"300": 5}})])
    delete([f"new-{number}" for number in range(40)])
    delete(["new-0"])
    assert not client.search("zebra", filter={"field": "year", "eq": 2026}).hits


@pytest.mark.parametrize("opened", ALL)
def test_a_key_for_reading_is_told_what_it_lacks(
    opened: Callable[..., tuple[Add, Delete]], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, READER)
    with SearchClient(url, api_key=READER) as client:
        add, delete = opened(client, url)
        calls: list[Callable[[], Any]] = [
            lambda: add([("new", TEXT, ENCODED)]),
            lambda: add([("new", TEXT, FIELDS)]),
            lambda: delete(["music"]),
        ]
        for call in calls:
            with pytest.raises(AnswerError, match="admin") as error:
                call()
            assert (error.value.status, error.value.kind) == (403, "forbidden")


def test_a_service_with_a_model_encodes_what_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    place = Place(tmp_path, "expand")
    own = settings(tmp_path, recipe=place.recipe)
    with (
        SearchEngine.open(place.bundle, own) as engine,
        live(create_app(engine)) as url,
        SearchClient(url, api_key=KEY, timeout_s=120) as client,
    ):
        for opened in (of_langchain, of_llama_index, of_haystack):
            add, delete = opened(client, url)
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
    with pytest.raises(ClientError, match="There are 1 ids for 2 documents"):
        retriever.add_documents(nameless, ids=["a"])


def test_a_haystack_pipeline_writes_and_can_be_saved(
    client: SearchClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    pipeline = Pipeline()
    # It asks the store for nothing but writing.
    pipeline.add_component("write", DocumentWriter(cast(Any, store_of(client, url))))
    saved = pipeline.dumps()
    assert KEY not in saved
    again = Pipeline.loads(saved, allowed_modules=[MODULE])
    documents = [HaystackDocument(id="new", content=TEXT, meta=ENCODED)]
    assert again.run({"write": {"documents": documents}}) == {"write": {"documents_written": 1}}
    assert asyncio.run(again.run_async({"write": {"documents": documents}})) == {"write": {"documents_written": 1}}
    assert client.document("new").fields["text"] == TEXT
    with pytest.raises(ClientError, match="The policy is SKIP"):
        store_of(client, url).write_documents(documents, DuplicatePolicy.SKIP)
    store_of(client, url).delete_documents(["new"])
