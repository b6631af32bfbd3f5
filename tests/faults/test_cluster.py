"""A real cluster that breaks while a service stands on it: what callers get, and that nothing acknowledged is lost."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster, only_index
from lightretriever.artifacts.cluster.push import push
from lightretriever.service.http.app import create_app
from tests.cluster.conftest import cluster
from tests.faults.conftest import Figure
from tests.service.live import live, warm
from tests.support.asking import samples
from tests.support.cluster import Proxy, connected, own_cluster, proxied, served_by
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import wait_until
from tests.support.written import ENTRIES, KEY, VECTOR

NAME = f"faults-{os.getpid()}"
DOCUMENT = {"fields": {"text": "A zebra."}, "vector": VECTOR, "impacts": {"300": 7}}
__all__ = ["cluster"]


class Caller(httpx2.Client):
    """A caller of a service on a cluster, who gets status and content of an answer."""

    def read(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        answer = self.request(method, path, json=body)
        assert (answer.headers["content-type"] == "application/problem+json") == (answer.status_code != 200)
        return answer.status_code, answer.json()

    def search(self) -> tuple[int, dict[str, Any]]:
        return self.read("POST", "/search", {"query": "play music"})

    def write(self, name: str) -> tuple[int, dict[str, Any]]:
        return self.read("PUT", f"/documents/{name}", DOCUMENT)

    def fetch(self, path: str) -> tuple[int, dict[str, Any]]:
        return self.read("GET", path)

    def errors(self, kind: str) -> float:
        """How many errors of a kind the metrics have."""
        return samples(self.get("/metrics").text).get(("errors_total", kind), 0.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("faults") / "tiny", vocabulary="words")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keys_file(tmp_path_factory.mktemp("keys"), *ENTRIES)


@contextmanager
def served(bundle: Bundle, cluster: Cluster, keys: Path, **others: Any) -> Iterator[Caller]:
    """Serve a bundle from a cluster."""
    with (
        warm(bundle, served_by(cluster, NAME, api_keys_file=keys, **others)) as engine,
        live(create_app(engine)) as url,
        Caller(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as caller,
    ):
        yield caller


@pytest.fixture
def behind(bundle: Bundle, cluster: Cluster, keys: Path) -> Iterator[tuple[Proxy, Caller]]:
    """A service, and what stands between it and the cluster, whose index wants a copy for which there is no node."""
    push(bundle, cluster, NAME, replicas=1)
    with proxied(cluster.name) as proxy, served(bundle, cluster, keys, opensearch_url=proxy.url) as caller:
        yield proxy, caller
    cluster.client.indices.delete(index=only_index(cluster, NAME))


def test_a_missing_copy_changes_nothing(behind: tuple[Proxy, Caller], cluster: Cluster) -> None:
    _, caller = behind
    assert cluster.client.cluster.health(index=NAME)["status"] == "yellow"
    status, answer = caller.search()
    assert (status, answer["degraded"], len(answer["hits"])) == (200, [], 10)
    assert caller.write("new")[0] == 200
    assert caller.fetch("/documents/new")[0] == 200
    assert caller.fetch("/readyz")[0] == 200


def test_credentials_that_are_refused(behind: tuple[Proxy, Caller], caplog: pytest.LogCaptureFixture) -> None:
    """A server that answers 401 stands before the cluster, which has no security of its own."""
    proxy, caller = behind
    proxy.refusing = 401
    for status, answer in (caller.search(), caller.fetch("/documents/music")):
        assert (status, answer["kind"]) == (503, "not_ready")
        assert proxy.url not in answer["detail"]
    status, answer = caller.write("new")
    assert (status, answer["kind"]) == (503, "write_failed")
    assert "does not know who asks (401)" in answer["detail"]
    assert caller.fetch("/readyz")[0] == 503
    assert (caller.errors("write_failed"), caller.errors("not_ready")) == (1, 3)
    assert {"leg failed", "documents failed", "write failed"} <= set(caplog.messages)
    proxy.refusing = None
    assert (caller.search()[0], caller.fetch("/documents/new")[0]) == (200, 404)
    wait_until(lambda: caller.fetch("/readyz")[0] == 200)  # the cluster is asked once a second


def test_a_full_disk(behind: tuple[Proxy, Caller], cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The block is the one that the cluster sets at its flood-stage watermark."""
    _, caller = behind
    kept = [caller.write(f"kept-{number}")[1]["version"] for number in range(3)]
    block(cluster, on=True)
    status, answer = caller.write("refused")
    assert (status, answer["kind"]) == (503, "write_failed")
    assert "A full disk" in answer["detail"]
    assert "write failed" in caplog.messages
    assert caller.errors("write_failed") == 1
    assert caller.search()[0] == 200
    block(cluster, on=False)
    assert caller.fetch("/documents/refused")[0] == 404
    assert [caller.fetch(f"/documents/kept-{number}")[1]["version"] for number in range(3)] == kept
    assert caller.write("refused")[0] == 200


def block(cluster: Cluster, *, on: bool) -> None:
    setting = {"index.blocks.read_only_allow_delete": True if on else None}
    cluster.client.indices.put_settings(index=NAME, body=setting)


@pytest.mark.slow
def test_nodes_and_a_whole_cluster_that_die(bundle: Bundle, keys: Path, figure: Figure) -> None:
    """One of three nodes is frozen, then killed, then all are, while callers search and write all the time."""
    with own_cluster(nodes=3) as nodes, connected(nodes.urls[0]) as cluster:
        push(bundle, cluster, NAME, shards=3, replicas=1)
        with (
            served(bundle, cluster, keys, opensearch_url=",".join(nodes.urls), deadline_ms=5_000) as caller,
            traffic_of(caller) as traffic,
        ):
            gaps = []
            for harm, mend in ((nodes.freeze, nodes.thaw), (nodes.kill, nodes.revive)):
                traffic.go_on(20)
                traffic.gap_s = 0.0
                harm(3)
                traffic.go_on(40)
                gaps.append(traffic.gap_s)
                mend(3)
                nodes.wait_for_green()
            for number in (1, 2, 3):
                nodes.kill(number)
            wait_until(lambda: caller.search()[1].get("kind") == "not_ready")
            for number in (1, 2, 3):
                nodes.revive(number)
            nodes.wait_for_green()
            traffic.go_on(20)
            wait_until(lambda: caller.fetch("/readyz")[0] == 200)
            written = list(traffic.acknowledged)
            lost = [name for name in written if caller.fetch(f"/documents/{name}")[0] != 200]
    assert lost == []
    assert traffic.wrong == []
    freeze, kill = gaps
    figure("cluster_lost_writes", len(lost), "writes", of=len(written), refused=traffic.refused)
    figure("cluster_wrong_answers", len(traffic.wrong), "answers", of=traffic.searches)
    figure("cluster_kill_gap_s", round(kill, 2), "s")
    figure("cluster_freeze_gap_s", round(freeze, 2), "s")


class Traffic:
    """A caller that searches and one that writes. `gap_s` is the longest time of both between two good answers."""

    def __init__(self, caller: Caller) -> None:
        self.ended = False
        self.searches = self.answered = self.refused = 0
        self.acknowledged: list[str] = []
        self.wrong: list[tuple[int, dict[str, Any]]] = []
        self.gap_s = 0.0
        self._caller = caller

    def search(self) -> None:
        since = perf_counter()
        while not self.ended:
            status, answer = self._caller.search()
            self.searches += 1
            if status == 200 and (answer["degraded"] or len(answer["hits"]) == 10):
                self.answered += 1
                self.gap_s, since = max(self.gap_s, perf_counter() - since), perf_counter()
            else:
                self._failed(status, answer, "not_ready")

    def write(self) -> None:
        since, number = perf_counter(), 0
        while not self.ended:
            number += 1
            status, answer = self._caller.write(f"written-{number}")
            if status == 200:
                self.acknowledged.append(f"written-{number}")
                self.gap_s, since = max(self.gap_s, perf_counter() - since), perf_counter()
            else:
                self.refused += 1
                self._failed(status, answer, "write_failed")

    def go_on(self, count: int) -> None:
        """Wait for so many more good answers of both."""
        searches, writes = self.answered + count, len(self.acknowledged) + count
        while self.answered < searches or len(self.acknowledged) < writes:
            sleep(0.05)

    def _failed(self, status: int, answer: dict[str, Any], kind: str) -> None:
        if (status, answer.get("kind")) not in ((503, kind), (504, "deadline_exceeded")):
            self.wrong.append((status, answer))
        sleep(0.1)


@contextmanager
def traffic_of(caller: Caller) -> Iterator[Traffic]:
    traffic = Traffic(caller)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(traffic.search), pool.submit(traffic.write)]
        try:
            yield traffic
        finally:
            traffic.ended = True
    for one in running:
        one.result()
