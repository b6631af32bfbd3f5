"""How soon `/livez` answers beside the most expensive requests that are allowed, and beside some that are not.

At full length the figures are recorded for the demo bundle; nothing here asserts a time.
"""

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final
from urllib.parse import quote

import httpx2
import numpy as np
import orjson
import pytest

from lightretriever.artifacts.bundle.archive import unpack
from lightretriever.service.settings import Settings
from tests.faults.conftest import Figure
from tests.faults.traffic import Ask, ask, clients, elsewhere
from tests.service.place import Place

pytestmark = pytest.mark.slow

CLIENTS: Final = 2
EVERY_S: Final = 0.02
DEFAULTS: Final = Settings()
WORDS: Final = ("terminal", "music", "player", "library", "network", "images", "converts", "compresses", "parser")
# Answers of a service that holds its bounds and its deadline.
RIGHT: Final = {200, 413, 422, 503, 504}


def text(length: int) -> str:
    """Words with many different tokens, of so many characters."""
    return " ".join(f"{WORDS[i % len(WORDS)]} {i * 7919 % 9973}" for i in range(length // 5))[:length]


def requests(ids: Sequence[str], key: str) -> dict[str, Ask]:
    """By key of the figure, the request of an endpoint that costs most."""
    k, most = DEFAULTS.max_candidates, DEFAULTS.max_query_chars
    long, largest = text(most), max(ids, key=len)
    whole: dict[str, Any] = {"query": long, "k": k, "candidates": k, "snippets": {"length": 2000}}
    many = DEFAULTS.max_batch_hits // DEFAULTS.max_batch
    explained = {"query": text(150), "k": DEFAULTS.max_explained // 100, "explain": True}
    condition: dict[str, Any] = {"and": [{"not": {"field": "section", "in": [f"x{i}" for i in range(50)]}}] * 20}
    bodies = {
        "livez_search_ms": ("/search", whole),
        "livez_explain_ms": ("/search", explained),
        "livez_filter_ms": ("/search", whole | {"query": "music player", "filter": condition}),
        "livez_batch_ms": ("/search/batch", {"searches": [whole | {"k": many}] * DEFAULTS.max_batch}),
        "livez_encode_ms": ("/encode", {"text": long}),
        "livez_invalid_ms": ("/search", {"query": "music", "filter": {"field": "section", "in": [{}] * 300_000}}),
    }
    found = {name: ask("POST", path, body, key=key) for name, (path, body) in bodies.items()}
    found |= {"livez_terms_ms": ask("GET", f"/terms/{quote(largest, safe='')}", key=key)}
    found |= {"livez_metrics_ms": ask("GET", "/metrics", key=key)}
    bomb = gzip.compress(bytes(500 * DEFAULTS.max_body_bytes))
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
    head += f"\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    return found | {"livez_bomb_ms": Ask(head.encode() + bomb)}


def beside(url: str, request: Ask, seconds: float) -> tuple[list[int], list[float]]:
    """Run some clients that send a request again and again, each when the one before is answered: the statuses, and the
    times of `/livez` meanwhile, in seconds."""
    times: list[float] = []
    with elsewhere(clients, url, [request], CLIENTS, seconds) as pressed, httpx2.Client(base_url=url) as client:
        while not pressed.done() or not times:
            began = perf_counter()
            assert client.get("/livez", timeout=60).status_code == 200
            times.append(perf_counter() - began)
            sleep(EVERY_S)
        return [answer.status for answer in pressed.result()], times


@contextmanager
def served(place: Place, full: bool, folder: Path) -> Iterator[str]:
    """Serve the demo bundle at full length, else the tiny one, with the settings' defaults."""
    if full:
        unpack(Path(__file__).parents[2] / "demo" / "bundle.tar.xz", folder / "demo")
        place.link.unlink()
        place.link.symlink_to(folder / "demo")
    with place.served() as (_, url):
        yield url


def test_livez_beside_the_most_expensive_requests(full: bool, figure: Figure, place: Place, tmp_path: Path) -> None:
    with served(place, full, tmp_path) as url:
        found = httpx2.post(f"{url}/search", json={"query": "music", "k": 50}, headers=place.headers).json()
        for name, request in requests([hit["id"] for hit in found["hits"]], place.key).items():
            statuses, times = beside(url, request, 10 if full else 1)
            assert set(statuses) <= RIGHT, (name, Counter(statuses))
            assert statuses
            p50, p99, longest = (round(1e3 * float(np.percentile(times, share)), 1) for share in (50, 99, 100))
            answered = {str(status): count for status, count in sorted(Counter(statuses).items())}
            figure(name, longest, "ms", p50=p50, p99=p99, asked=len(times), answers=answered)
        assert orjson.loads(httpx2.get(f"{url}/livez").content) == {"status": "alive"}
