"""The tools for language models: the library's own client, over stdio and over HTTP, and a real service behind them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AsyncSearchClient, SearchClient
from lightretriever.service.client.adapters.mcp import FoundDocuments, make_server
from lightretriever.service.schemas import CollectionList, Document, Info, SearchResponse
from tests.client.test_command import ALONE, allowed
from tests.service.live import live_bundles
from tests.service.process import ROOT
from tests.support.asking import without_times
from tests.support.commands import run_command
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.written import ENTRIES, KEY

COMMAND = ("-m", "lightretriever.service.cli", "mcp")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """What runs the tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server, whose documents can be filtered by year."""
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", fields={"year": "number"})
    with live_bundles(bundle.path) as url:
        yield url


def over_stdio(url: str, *words: str, **environment: str) -> Client:
    """A client of the command, or of Python with other words before the address."""
    arguments = [*(words or COMMAND), url, "--timeout-s", "120"]
    variables = {**os.environ, **environment}
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=variables, cwd=ROOT)))


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[Client]:
    command = [sys.executable, *COMMAND, url, "--http", "127.0.0.1:0", "--timeout-s", "120"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+/mcp", process.stderr.readline())
        try:
            if found is None:
                raise RuntimeError(process.stderr.read())
            async with Client(found[0]) as client:
                yield client
        finally:
            process.terminate()
            rest = process.stderr.read()
            process.wait()
        assert rest == ""


@asynccontextmanager
async def in_process(url: str) -> AsyncIterator[Client]:
    """The same tools in this process, without a transport."""
    async with AsyncSearchClient(url, timeout_s=120) as service, Client(make_server(service)) as client:
        yield client


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


@pytest.mark.parametrize("over", [over_stdio, over_http])
async def test_a_model_searches_reads_and_asks_why(url: str, over: Any) -> None:
    async with over(url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "document", "explain", "info", "collections"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        assert "`search` finds documents" in (client.instructions or "")
        info = Info.model_validate_json(text_of(await client.call_tool("info")))
        condition = {"field": "year", "gte": 2000}
        assert "year" in info.filters
        asked = {"query": "play music", "k": 3, "filter": condition}
        result = await client.call_tool("search", asked)
        found = FoundDocuments.model_validate_json(text_of(result))
        assert result.structured_content == json.loads(text_of(result))
        with SearchClient(url, timeout_s=120) as own:
            best = own.search("play music", k=3, filter=condition, snippets={"fields": ["text"], "length": 500})
            assert [(hit.id, hit.score, hit.matched, hit.text) for hit in found.hits] == [
                (hit.id, hit.score, hit.matched, (hit.snippets or {})["text"].text) for hit in best.hits
            ]
            assert found.matched == best.matched
            last = own.search("play music", k=20).hits[-1]
            whole = own.document(last.id)
        assert all("text" not in hit.fields and hit.fields["title"] for hit in found.hits)
        result = await client.call_tool("document", {"id": last.id})
        assert Document.model_validate(json.loads(text_of(result))) == whole
        why = await client.call_tool("explain", {"query": "play music", "document": last.id})
        (hit,) = SearchResponse.model_validate_json(text_of(why)).hits
        assert (hit.id, hit.rank, hit.score, hit.fields) == (last.id, 20, last.score, {})
        assert hit.explanation is not None
        assert hit.explanation.words
        why = await client.call_tool("explain", {"query": "play music", "k": 2, "mode": "sparse"})
        assert len(SearchResponse.model_validate_json(text_of(why)).hits) == 2


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"query": "music", "filter": {"field": "nope", "eq": 1}}, "by these they can: year (422"),
    ("search", {}, "query"),
    ("search", {"query": "music", "limit": 3}, "limit"),
    ("document", {"id": "nope"}, "(404 document_not_found)"),
    ("explain", {"query": "music", "document": "nope"}, "(404 document_not_found)"),
]


async def test_what_the_service_refuses_is_an_error_that_the_model_reads(url: str) -> None:
    with SearchClient(url, timeout_s=120) as own:
        (hit,) = own.search("music", k=1).hits
    beyond = {"query": "music", "document": hit.id, "filter": {"field": "year", "gt": hit.fields["year"]}}
    async with in_process(url) as client:
        for tool, arguments, says in [*REFUSED, ("explain", beyond, f"{hit.id!r} is not among the first ")]:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert says in text_of(result)


AS_MEANT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("search", {"collection": None, "filter": None, "k": None, "offset": None, "mode": None}, {}),
    ("search", {"k": 2.0, "offset": "1"}, {"k": 2, "offset": 1}),
    ("search", {"filter": '{"field": "year", "gte": 2000}'}, {"filter": {"field": "year", "gte": 2000}}),
    ("explain", {"document": None, "k": 2, "mode": None}, {"k": 2}),
]


async def test_arguments_are_taken_as_they_were_meant(url: str) -> None:
    """Language models send null for what they leave out, and JSON as a text."""
    async with in_process(url) as client:

        async def answered(tool: str, arguments: dict[str, Any]) -> Any:
            text = text_of(await client.call_tool(tool, {"query": "play music", **arguments}))
            return without_times(json.loads(text))

        for tool, given, plain in AS_MEANT:
            assert await answered(tool, given) == await answered(tool, plain), given
        for arguments in ({"query": ""}, {"query": None}, {"query": True}):
            assert (await client.call_tool("search", arguments)).is_error, arguments


async def test_each_tool_takes_a_collection(tmp_path: Path) -> None:
    first, second = (make_tiny_bundle(tmp_path / name, documents=count).path for name, count in (("a", 20), ("b", 60)))
    with live_bundles({"first": first, "b": second}) as url:
        async with in_process(url) as client:
            listed = CollectionList.model_validate_json(text_of(await client.call_tool("collections")))
            assert [(one.name, one.documents) for one in listed.collections] == [("first", 20), ("b", 60)]
            there = {"collection": "b"}
            info = Info.model_validate_json(text_of(await client.call_tool("info", there)))
            assert info.bundle.documents == 60
            asked = {"query": "play music", "k": 60}
            result = await client.call_tool("search", asked | there)
            found = FoundDocuments.model_validate_json(text_of(result))
            only = next(hit.id for hit in found.hits if hit.id == "doc-50")
            assert not (await client.call_tool("document", {"id": only} | there)).is_error
            missing = await client.call_tool("document", {"id": only})
            assert "(404 document_not_found)" in text_of(missing)
            why = await client.call_tool("explain", {"query": "play music", "document": only} | there)
            assert SearchResponse.model_validate_json(text_of(why)).hits[0].id == only
            wrong = await client.call_tool("search", asked | {"collection": "c/../d"})
            assert "(404 " in text_of(wrong)


@pytest.mark.slow
async def test_the_key_comes_from_the_environment(tiny_bundle: Bundle, tmp_path: Path) -> None:
    keys = keys_file(tmp_path, *ENTRIES)

    async def search(url: str, key: str) -> bool:
        async with over_stdio(url, LIGHTRETRIEVER_API_KEY=key) as client:
            result = await client.call_tool("search", {"query": "music"})
            if result.is_error:
                assert "(401 unauthorized)" in text_of(result)
                assert KEY not in text_of(result)
            return not result.is_error

    with live_bundles(tiny_bundle.path, api_keys_file=keys) as url:
        assert await search(url, KEY)
        assert not await search(url, "other")


def test_a_wrong_command_line_is_an_error_and_an_address_for_others_is_warned_of() -> None:
    for arguments, says in (
        (["localhost:8080"], "Write it as in http://127.0.0.1:8080"),
        (["--http", "8090"], "--http 8090: this is no HOST:PORT. Name a free address of this machine, as in 127.0.0.1"),
        (["--http", "127.0.0.1:70000"], "--http 127.0.0.1:70000: Port out of range"),
        (["--http", "192.0.2.1:8090"], "--http 192.0.2.1:8090: "),
    ):
        done = run_command("mcp", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
    command = [sys.executable, *COMMAND, "--http", "0.0.0.0:0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("tools at http://0.0.0.0:")
        assert process.stderr.readline().startswith("warning: whoever reaches this address may search")
        process.terminate()


async def test_the_pinned_list_is_all_that_the_tools_take(url: str) -> None:
    async with over_stdio(url, "-c", ALONE, ",".join(allowed("mcp")), "mcp") as client:
        assert not (await client.call_tool("search", {"query": "music"})).is_error
