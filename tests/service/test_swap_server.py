"""Swaps on a real server under load: no request fails, and the process has what it had before."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from lightretriever.service.http.api_keys import new_key

from tests.service.process import Server
from tests.service.test_swap import BODY, flip, named, version_of
from tests.support.keys import keys_file
from tests.support.memory import Held, held

CLIENTS = 3


@pytest.mark.slow
@pytest.mark.parametrize("count", [10])
def test_swaps_on_a_real_server(tmp_path: Path, count: int) -> None:
    versions = tmp_path / "versions"
    paths = [named(versions / name, name).path for name in ("one", "two")]
    link = tmp_path / "current"
    link.symlink_to(paths[0])
    key, entry = new_key("all", ["search", "admin"])
    headers = {"authorization": f"Bearer {key}"}
    over = threading.Event()
    seen: set[str] = set()

    def ask(url: str) -> int:
        asked = 0
        with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
            while not over.is_set():
                answer = client.post("/search", json=BODY)
                assert answer.status_code == 200, answer.text
                seen.add(version_of(answer.json()))
                batch = client.post("/search/batch", json={"searches": [BODY] * 3}).json()
                assert len({version_of(result) for result in batch["results"]}) == 1
                asked += 1
        return asked

    environment = {"LIGHTRETRIEVER_API_KEYS_FILE": str(keys_file(tmp_path, entry)), "LIGHTRETRIEVER_LOG_LEVEL": "error"}
    found: list[Held] = []
    with Server(link, environment=environment) as server, ThreadPoolExecutor(CLIENTS) as pool:
        url = server.url
        asking = [pool.submit(ask, url) for _ in range(CLIENTS)]
        try:
            for number in range(1, count + 1):
                flip(link, paths[number % 2])
                swapped = [httpx2.post(f"{url}/admin/reload", headers=headers, timeout=60) for _ in range(2)]
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
