"""The retrievers of other libraries, with the libraries themselves, over real services."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from haystack import Document as HaystackDocument
from haystack import Pipeline
from haystack.components.writers import DocumentWriter
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import Secret
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import MetadataMode, TextNode

from lightretriever.service.client import AnswerError, ClientError, SearchClient
from lightretriever.service.client.adapters import haystack, langchain, llama_index
from lightretriever.service.client.documents import SCORES, document_of, texts_of
from lightretriever.service.schemas import SearchResponse
from tests.client.scripted import FOUND, HIT
from tests.client.test_command import apart
from tests.live.test_upsert import Place
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY

pytestmark = pytest.mark.slow

VARIABLE = "LIGHTRETRIEVER_API_KEY"
QUERY = "play music"
TEXT = "A zebra plays the xylophone."
FIELDS = {"title": "Zebra", "year": 2026}
ENCODED: dict[str, Any] = {**FIELDS, "vector": [0.25] * 16, "impacts": {"300": 5}}

Hits = list[tuple[str, str, dict[str, Any]]]
Calls = tuple[Callable[..., Hits], Callable[[Hits], Any], Callable[[list[str]], Any]]  # search, add and delete


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that takes changes."""
    folder = tmp_path_factory.mktemp("adapters")
    bundle = make_tiny_bundle(folder / "tiny", fields={"year": "number"})
    with live_bundles(bundle.path, live=folder / "live", api_keys_file=keys_file(folder, *ENTRIES)) as url:
        yield url


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SearchClient]:
    monkeypatch.setenv(VARIABLE, KEY)
    with SearchClient(url, api_key=KEY, timeout_s=120) as client:
        yield client


def store_of(url: str) -> haystack.SearchDocumentStore:
    return haystack.SearchDocumentStore(url, api_key=Secret.from_env_var(VARIABLE), timeout_s=120)


@contextmanager
def of_langchain(client: SearchClient, _: str) -> Iterator[Calls]:
    retriever = langchain.SearchRetriever(client=client, request={"k": 3})

    def search(*, run: bool, **fields: Any) -> Hits:
        hits = asyncio.run(retriever.ainvoke(QUERY, **fields)) if run else retriever.invoke(QUERY, **fields)
        return [(hit.id or "", hit.page_content, hit.metadata) for hit in hits]

    def add(given: Hits) -> None:
        documents = [Document(page_content=text, metadata=metadata) for _, text, metadata in given]
        assert retriever.add_documents(documents, ids=[name for name, _, _ in given]) == [name for name, _, _ in given]

    yield search, add, retriever.delete


@contextmanager
def of_llama_index(client: SearchClient, _: str) -> Iterator[Calls]:
    index = llama_index.SearchRetriever(client, request={"k": 3})

    def search(*, run: bool, **fields: Any) -> Hits:
        chosen = llama_index.SearchRetriever(client, request={"k": 3, **fields})
        hits = asyncio.run(chosen.aretrieve(QUERY)) if run else chosen.retrieve(QUERY)
        assert [hit.score for hit in hits] == [hit.node.metadata["score"] for hit in hits]
        return [(hit.node.node_id, hit.node.get_content(), hit.node.metadata) for hit in hits]

    def add(given: Hits) -> None:
        index.add([TextNode(id_=name, text=text, metadata=metadata) for name, text, metadata in given])

    yield search, add, index.delete_nodes


@contextmanager
def of_haystack(_: SearchClient, url: str) -> Iterator[Calls]:
    store = store_of(url)
    pipeline, retriever = Pipeline(), haystack.SearchRetriever(store, {"k": 3})
    pipeline.add_component("search", retriever)

    def search(*, run: bool, **fields: Any) -> Hits:
        given: dict[str, Any] = {"query": QUERY, "request": fields}
        found = asyncio.run(pipeline.run_async({"search": given}))["search"] if run else retriever.run(**given)
        return [(hit.id, hit.content or "", hit.meta) for hit in found["documents"]]

    def add(given: Hits) -> None:
        documents = [HaystackDocument(id=name, content=text, meta=metadata) for name, text, metadata in given]
        assert store.write_documents(documents) == len(given)

    yield search, add, store.delete_documents
    pipeline.close()


LIBRARIES = [of_langchain, of_llama_index, of_haystack]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, client: SearchClient, url: str) -> Iterator[Calls]:
    with request.param(client, url) as calls:
        yield calls


def test_hits_are_those_of_the_service(library: Calls, client: SearchClient) -> None:
    search, _, _ = library
    for run, fields in ((False, {}), (True, {}), (False, {"k": 2, "mode": "dense"}), (True, {"mode": "sparse"})):
        response = client.search(QUERY, **{"k": 3, **fields})
        expected = [(hit.id, hit.fields["text"], metadata) for hit, _, metadata in texts_of(response, "text")]
        assert search(run=run, **fields) == expected
    with raises(AnswerError, naming="nope"):
        search(run=False, nope=1)


def test_documents_are_written_and_deleted(library: Calls, client: SearchClient) -> None:
    _, add, delete = library
    add([(f"new-{number}", TEXT, ENCODED) for number in range(40)])
    assert client.document("new-39").fields == {**FIELDS, "text": TEXT}
    hits = client.search("zebra", filter={"field": "year", "eq": 2026}, k=100).hits
    assert {hit.id for hit in hits} == {f"new-{number}" for number in range(40)}
    add([("new-1", TEXT, {**FIELDS, "year": 1999})])  # vector and impacts stay
    assert client.document("new-1").fields["year"] == 1999
    for wrong in ({**ENCODED, "vector": [1.0]}, FIELDS, {**FIELDS, "impacts": {"300": 5}}):
        with raises(ClientError, naming="wrong"):
            add([("new-2", TEXT, ENCODED), ("wrong", TEXT, wrong)])
    delete([f"new-{number}" for number in range(40)])
    delete(["new-0"])
    assert not client.search("zebra", filter={"field": "year", "eq": 2026}).hits


def test_a_service_with_a_model_encodes_what_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    place = Place(tmp_path, "expand")
    own = {"live": tmp_path / "live", "api_keys_file": keys_file(tmp_path, *ENTRIES), "recipe": place.recipe}
    with live_bundles(place.bundle.path, **own) as url, SearchClient(url, api_key=KEY, timeout_s=120) as client:
        for library in LIBRARIES:
            with library(client, url) as (_, add, delete):
                add([("new", "A zebra crosses the road.", {"title": "Zebra"})])
                assert client.search("zebra crosses the road", k=1).hits[0].id == "new"
                delete(["new"])


def test_what_a_search_gave_can_be_written_back(library: Calls, client: SearchClient) -> None:
    search, add, _ = library
    (hit,) = search(run=False, k=1)
    before = client.document(hit[0])
    add([hit])
    assert client.document(hit[0]).fields == before.fields


def test_langchain_names_documents_and_runs_in_a_chain(client: SearchClient) -> None:
    retriever = langchain.SearchRetriever(client=client, request={"k": 2})
    made = retriever.add_documents([Document(page_content=TEXT, metadata=ENCODED) for _ in range(2)])
    assert len(set(made)) == 2
    assert retriever.delete(made)
    assert not retriever.delete(made)
    with pytest.raises(ValueError, match="zip"):
        retriever.add_documents([Document(page_content=TEXT)], ids=[])
    chain = retriever | RunnableLambda(len)
    assert chain.invoke(QUERY) == 2


def test_llama_index_gives_a_model_the_fields_but_not_the_scores(client: SearchClient) -> None:
    (found,) = llama_index.SearchRetriever(client, request={"k": 1}).retrieve(QUERY)
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        shown = found.node.get_content(metadata_mode=mode)
        assert f"title: {found.node.metadata['title']}" in shown
        assert not [name for name in SCORES if f"{name}:" in shown]


def test_haystack_pipelines_can_be_saved(client: SearchClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the key, which the environment has where they are loaded."""
    pipeline = Pipeline()
    pipeline.add_component("search", haystack.SearchRetriever(store_of(url), {"k": 2}))
    pipeline.add_component("write", DocumentWriter(store_of(url)))  # type: ignore[arg-type]
    monkeypatch.delenv(VARIABLE)
    saved = pipeline.dumps()
    assert KEY not in saved
    monkeypatch.setenv(VARIABLE, KEY)
    again = Pipeline.loads(saved, allowed_modules=[haystack.__name__])
    documents = [HaystackDocument(id="new", content=TEXT, meta=ENCODED)]
    told = again.run({"search": {"query": QUERY}, "write": {"documents": documents}})
    assert (len(told["search"]["documents"]), told["write"]) == (2, {"documents_written": 1})
    with raises(ClientError, naming="SKIP"):
        store_of(url).write_documents(documents, DuplicatePolicy.SKIP)
    client.delete_document("new")
    again.close()


def test_texts_of_hits_and_a_field_that_is_called_like_a_score() -> None:
    hits = [{**HIT, "fields": fields} for fields in ({"text": "", "title": "T"}, {}, {"text": 5})]
    hits.append({**HIT, "fields": {"text": "t", "score": "A+", "id": 7, "author": "x"}})
    response = SearchResponse.model_validate_json(json.dumps({**FOUND, "hits": hits, "degraded": ["sparse"]}))
    found = list(texts_of(response, "text"))
    assert [text for _, text, _ in found] == ["T", "", "5", "t"]
    _, _, metadata = found[-1]
    assert {name: metadata.pop(name) for name in SCORES} == {
        **{"id": "a", "rank": 1, "score": 1.0, "dense_score": 0.5, "dense_rank": 1},
        **{"sparse_score": None, "sparse_rank": None, "matched": None, "degraded": "sparse"},
    }
    assert metadata == {"document_score": "A+", "document_id": 7, "author": "x"}
    back = document_of("a", "t", {**metadata, **dict.fromkeys(SCORES), "document_type": "x"}, "text")
    assert back["fields"] == {"score": "A+", "id": 7, "author": "x", "document_type": "x", "text": "t"}
    assert document_of("a", "t", {"score": "A+"}, "body")["fields"] == {"score": "A+", "body": "t"}


@pytest.mark.parametrize("name", ["langchain", "llama_index", "haystack"])
def test_each_loads_its_own_library_alone(name: str) -> None:
    libraries = {"langchain": "langchain_core", "llama_index": "llama_index.core", "haystack": "haystack"}
    loaded = f"print(*(name for name in {list(libraries.values())} if name in sys.modules))"
    script = f"import sys, lightretriever.service.client.adapters.{name}\n{loaded}"
    assert apart("-c", script).stdout.split() == [libraries[name]]
