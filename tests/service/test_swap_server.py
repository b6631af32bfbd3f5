"""Swaps on a real server under load: no request fails, and the process has what it had before."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.service.place import Place
from tests.service.test_swap import BODY, named, version_of
from tests.support.memory import Held, held

CLIENTS = 3


@pytest.mark.slow
def test_swaps_on_a_real_server(tmp_path: Path) -> None:
    count, versions = 10, tmp_path / "versions"
    one, two = (named(versions / name, name).path for name in ("one", "two"))
    place = Place.make(tmp_path, (one, two))
    over = threading.Event()
    seen: set[str] = set()

    def ask(url: str) -> int:
        asked = 0
        with httpx2.Client(base_url=url, headers=place.headers, timeout=60) as client:
            while not over.is_set():
                answer = client.post("/search", json=BODY)
                assert answer.status_code == 200, answer.text
                seen.add(version_of(answer.json()))
                batch = client.post("/search/batch", json={"searches": [BODY] * 3}).json()
                assert len({version_of(result) for result in batch["results"]}) == 1
                asked += 1
        return asked

    found: list[Held] = []
    with place.served() as (server, url), ThreadPoolExecutor(CLIENTS) as pool:
        asking = [pool.submit(ask, url) for _ in range(CLIENTS)]
        try:
            for number in range(1, count + 1):
                swapped = [place.swap(url, number % 2) for _ in range(2)]
                # The second one is answered when the old engine is closed.
                assert [answer.json()["swapped"] for answer in swapped] == [True, False]
                found.append(held(server.process.pid, versions))
        finally:
            over.set()
            asked = [future.result() for future in asking]
        assert min(asked) > 0
        code, _, errors = server.stop()
    assert (code, errors) == (0, "")
    assert seen == {"one", "two"}
    first, last = found[1], found[-1]
    # Lanes start threads when they are needed, and Java opens a file now and then; a leak is one of each a swap.
    for name in ("descriptors", "threads", "mapped"):
        assert getattr(last, name) < getattr(first, name) + count - 3, found
