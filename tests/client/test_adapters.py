"""The retrievers of other libraries, with the libraries themselves, over a real server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from haystack import Pipeline
from haystack.telemetry._telemetry import telemetry
from haystack.utils import Secret
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import MetadataMode, QueryBundle, TextNode

from lightretriever.service.client import AnswerError, AsyncSearchClient, Retries, SearchClient, UnreachableError
from lightretriever.service.client.adapters import haystack, langchain, llama_index
from lightretriever.service.client.hits import SCORES, hit_metadata
from lightretriever.service.schemas import SearchResponse
from tests.client.scripted import FOUND, Scripted, answer, problem
from tests.service.process import ROOT
from tests.support.wordings import raises

pytestmark = pytest.mark.slow

QUERY = "play music"
MODULE = "lightretriever.service.client.adapters.haystack"
ONCE = Retries(attempts=1)


@pytest.fixture
def client(url: str) -> Iterator[SearchClient]:
    with SearchClient(url, timeout_s=120) as client:
        yield client


def expected(client: SearchClient, **fields: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Id, text and metadata of the hits."""
    response = client.search(QUERY, **fields)
    return [(hit.id, hit.fields["text"], metadata_by_hand(hit.model_dump())) for hit in response.hits]


def metadata_by_hand(hit: dict[str, Any]) -> dict[str, Any]:
    legs = {
        f"{leg}_{what}": hit[leg][what] if hit[leg] else None
        for leg in ("dense", "sparse")
        for what in ("score", "rank")
    }
    judged = {"matched": hit.get("matched"), "degraded": ""}
    fields = {"title": hit["fields"]["title"], "year": hit["fields"]["year"]}
    return {**fields, "id": hit["id"], "rank": hit["rank"], "score": hit["score"], **legs, **judged}


def test_langchain(client: SearchClient) -> None:
    retriever = langchain.SearchRetriever(client=client, request={"k": 3})
    for found, fields in (
        (retriever.invoke(QUERY), {"k": 3}),
        (retriever.invoke(QUERY, k=2, mode="dense"), {"k": 2, "mode": "dense"}),
        (retriever.batch([QUERY])[0], {"k": 3}),
    ):
        got = [(document.id, document.page_content, document.metadata) for document in found]
        assert got == expected(client, **fields)
    with raises(AnswerError, naming="invalid_request"):
        retriever.invoke(QUERY, nope=1)


def test_langchain_in_a_chain_with_callbacks(client: SearchClient) -> None:
    class Listener(BaseCallbackHandler):
        def on_retriever_end(self, documents: Any, **_: Any) -> None:
            heard.extend(documents)

    heard: list[Any] = []

    def joined(documents: list[Document]) -> str:
        return " | ".join(document.metadata["title"] for document in documents)

    chain = langchain.SearchRetriever(client=client, request={"k": 2}) | RunnableLambda(joined) | StrOutputParser()
    titles = " | ".join(metadata["title"] for _, _, metadata in expected(client, k=2))
    assert chain.invoke(QUERY, config={"callbacks": [Listener()]}) == titles
    assert len(heard) == 2


def test_langchain_async(client: SearchClient, url: str) -> None:
    async def use() -> None:
        async with AsyncSearchClient(url, timeout_s=120) as own:
            for async_client in (own, None):
                retriever = langchain.SearchRetriever(client=client, async_client=async_client, request={"k": 3})
                found = await retriever.ainvoke(QUERY, mode="sparse")
                got = [(document.id, document.page_content, document.metadata) for document in found]
                assert got == expected(client, k=3, mode="sparse")
                assert len((await retriever.abatch([QUERY, "editor"]))[1]) == 3

    asyncio.run(use())


def test_llama_index(client: SearchClient, url: str) -> None:
    retriever = llama_index.SearchRetriever(client, request={"k": 3})

    async def asked() -> list[Any]:
        async with AsyncSearchClient(url, timeout_s=120) as own:
            with_own = llama_index.SearchRetriever(client, own, request={"k": 3})
            return [await with_own.aretrieve(QUERY), await retriever.aretrieve(QUERY)]

    for found in (retriever.retrieve(QUERY), retriever.retrieve(QueryBundle(QUERY)), *asyncio.run(asked())):
        got = [(item.node.node_id, item.node.text, item.node.metadata) for item in found]
        assert got == expected(client, k=3)
        assert [item.score for item in found] == [item.node.metadata["score"] for item in found]


def test_llama_index_gives_a_model_the_fields_but_not_the_scores(client: SearchClient) -> None:
    (found,) = llama_index.SearchRetriever(client, request={"k": 1}).retrieve(QUERY)
    assert isinstance(found.node, TextNode)
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        shown = found.node.get_content(metadata_mode=mode)
        assert f"title: {found.node.metadata['title']}" in shown
        assert not [name for name in SCORES if f"{name}:" in shown]


def test_haystack(client: SearchClient, url: str) -> None:
    component = haystack.SearchRetriever(url, top_k=3, request={"mode": "dense"}, timeout_s=120)
    for found, fields in (
        (component.run(QUERY), {"k": 3, "mode": "dense"}),
        (component.run(QUERY, top_k=2, request={"mode": "sparse"}), {"k": 2, "mode": "sparse"}),
        (asyncio.run(component.run_async(QUERY)), {"k": 3, "mode": "dense"}),
        (asyncio.run(component.run_async(QUERY, request={"k": 1})), {"k": 1, "mode": "dense"}),
    ):
        got = [(document.id, document.content, document.meta) for document in found["documents"]]
        assert got == expected(client, **fields)
        assert [document.score for document in found["documents"]] == [meta["score"] for _, _, meta in got]
    component.close()
    assert len(component.run(QUERY)["documents"]) == 3
    component.close()


def test_haystack_pipelines_run_and_can_be_saved(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    component = haystack.SearchRetriever(
        url, api_key=Secret.from_env_var("LIGHTRETRIEVER_API_KEY"), top_k=2, timeout_s=120
    )
    pipeline = Pipeline()
    pipeline.add_component("search", component)
    saved = pipeline.dumps()
    monkeypatch.setenv("LIGHTRETRIEVER_API_KEY", "any-key")  # this server needs none
    assert "any-key" not in saved
    again = Pipeline.loads(saved, allowed_modules=[MODULE])
    found = again.run({"search": {"query": QUERY}})["search"]["documents"]
    assert found == component.run(QUERY)["documents"]
    assert len(found) == 2
    answers = [asyncio.run(again.run_async({"search": {"query": QUERY}})) for _ in range(2)]
    assert [answer["search"]["documents"] for answer in answers] == [found, found]
    pipeline.close()
    again.close()


def test_haystack_sends_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTRETRIEVER_API_KEY", "the-key")
    with Scripted(answer()) as server:
        component = haystack.SearchRetriever(server.url, api_key=Secret.from_env_var("LIGHTRETRIEVER_API_KEY"))
        with closing(component):
            component.run(QUERY)
            asyncio.run(component.run_async(QUERY))
    assert [request["headers"]["authorization"] for request in server.seen] == ["Bearer the-key"] * 2


def test_no_telemetry_is_sent_by_these_tests() -> None:
    assert telemetry is None


def test_errors_come_through() -> None:
    with Scripted(problem(401, "unauthorized")) as server, SearchClient(server.url, retries=ONCE) as client:
        component = haystack.SearchRetriever(server.url)
        for ask in (
            langchain.SearchRetriever(client=client).invoke,
            llama_index.SearchRetriever(client).retrieve,
            component.run,
        ):
            with raises(AnswerError, naming="401"):
                ask(QUERY)
        component.close()
    with SearchClient(server.url, retries=ONCE) as client, pytest.raises(UnreachableError):
        langchain.SearchRetriever(client=client).invoke(QUERY)


def found_with(**fields: Any) -> SearchResponse:
    hit = {**FOUND["hits"][0], "fields": fields}  # type: ignore[index]
    return SearchResponse.model_validate_json(json.dumps({**FOUND, "hits": [hit], "degraded": ["sparse"]}))


def test_a_field_that_is_called_like_a_score_is_kept_under_another_name() -> None:
    response = found_with(text="t", score="A+", id=7, author="x")
    metadata = hit_metadata(response, response.hits[0], "text")
    assert metadata["score"] == 1.0
    assert (metadata["document_score"], metadata["document_id"], metadata["author"]) == ("A+", 7, "x")
    assert (metadata["degraded"], metadata["sparse_score"], metadata["sparse_rank"]) == ("sparse", None, None)
    assert metadata["matched"] is None
    judged = response.hits[0].model_copy(update={"matched": "weak"})
    assert hit_metadata(response, judged, "text")["matched"] == "weak"
    assert set(metadata) == {*SCORES, "document_score", "document_id", "author"}


@pytest.mark.parametrize(
    ("fields", "text_field", "text"),
    [
        ({"text": "t", "title": "T"}, "text", "t"),
        ({"text": "", "title": "T"}, "text", "T"),
        ({"title": "T"}, "text", "T"),
        ({}, "text", ""),
        ({"text": "t", "body": "b"}, "body", "b"),
        ({"body": 5}, "body", "5"),
    ],
)
def test_the_text_of_a_document(fields: dict[str, Any], text_field: str, text: str) -> None:
    with Scripted(answer(found_with(**fields).model_dump(mode="json"))) as server, SearchClient(server.url) as client:
        (document,) = langchain.SearchRetriever(client=client, text_field=text_field).invoke(QUERY)
        (node,) = llama_index.SearchRetriever(client, text_field=text_field).retrieve(QUERY)
        with closing(haystack.SearchRetriever(server.url, text_field=text_field)) as component:
            (other,) = component.run(QUERY)["documents"]
    assert (document.page_content, node.text, other.content) == (text, text, text)
    assert text_field not in document.metadata


@pytest.mark.parametrize("name", ["langchain", "llama_index", "haystack"])
def test_each_loads_its_own_library_alone(name: str) -> None:
    libraries = {"langchain": "langchain_core", "llama_index": "llama_index.core", "haystack": "haystack"}
    loaded = f"print(*(name for name in {list(libraries.values())} if name in sys.modules))"
    script = f"import sys, lightretriever.service.client.adapters.{name}\n{loaded}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [libraries[name]]
