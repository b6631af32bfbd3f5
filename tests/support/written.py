"""A service whose documents change: its keys, a document to write, and requests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live.documents import LiveDocuments
from lightretriever.service.client import SearchClient
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live
from tests.support.keys import new_key

KEY, _WHOLE = new_key("both", ["search", "admin"])
READER, _READS = new_key("reader", ["search"])
ENTRIES = (_WHOLE, _READS)
"""Of the keys, for their file."""

NEW = {"title": "Zebra", "text": "A zebra plays the xylophone.", "year": 2026}
VECTOR = [1.0] * 16


@contextmanager
def opened(bundle: Bundle, settings: Settings) -> Iterator[SearchClient]:
    """Serve a bundle, and give a client."""
    with (
        SearchEngine.open(bundle, settings) as engine,
        live(create_app(engine)) as url,
        SearchClient(url, api_key=KEY, timeout_s=60) as client,
    ):
        yield client


def ask(
    method: str, url: str, key: str | None = KEY, headers: dict[str, str] | None = None, **body: Any
) -> httpx2.Response:
    """Send a request with a key, and give the answer."""
    own = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx2.request(method, url, headers={**own, **(headers or {})}, timeout=60, **body)


def lines(url: str, *given: dict[str, Any], key: str = KEY) -> httpx2.Response:
    """Send changes as lines, and wait until searches see them."""
    body = "\n".join(json.dumps(one) for one in given)
    path = f"{url}/documents?refresh=wait_for"
    return ask("POST", path, key, {"content-type": "application/x-ndjson"}, content=body)


def changeable(engine: SearchEngine) -> LiveDocuments:
    """The documents of an engine, which change."""
    documents = engine.parts.backends.live
    assert documents is not None
    return documents


def impacts_of(engine: SearchEngine, text: str) -> dict[str, int]:
    """Return the same impact for every term of a text."""
    (terms,) = engine.parts.encoder.vocabulary.terms_of([text])
    return dict.fromkeys(terms, 300)


def found(client: SearchClient, query: str, **fields: Any) -> list[str]:
    """Search, and give the ids of the hits."""
    return [hit.id for hit in client.search(query, **fields).hits]
