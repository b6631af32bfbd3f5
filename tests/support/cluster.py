"""A real OpenSearch cluster for tests: the one at OPENSEARCH_URL, or one node of the kit in OPENSEARCH_HOME.

The kit is a folder with `bin/cluster`, which starts and stops nodes. Processes of one test run share a node; the last
one stops it.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lightretriever.artifacts.cluster.client import Cluster, ClusterAddress, connect

__all__ = ["connected", "remove_indexes", "shared_cluster"]

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
            started = subprocess.run([program, "start", *options, data], check=True, stdout=subprocess.PIPE, text=True)
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
