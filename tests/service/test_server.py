"""The real server in a process of its own: starting, stopping, refusing to start, and what it loads."""

import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.serving.server import EXIT_ERROR, run
from lightretriever.service.settings import Settings
from tests.service.live import live_bundles
from tests.service.process import ROOT, Server
from tests.support.asking import samples
from tests.support.waiting import wait_until
from tests.support.wire import POST, dial, received

SEARCH = {"query": "play music", "k": 3}


def test_it_says_when_it_is_ready_serves_and_stops_gracefully(tiny_path: Path) -> None:
    with Server(tiny_path) as server:
        assert server.ready_line.startswith("Ready: 120 documents of 'tiny' at http://127.0.0.1:")
        with httpx2.Client(base_url=server.url) as client, dial(server.port) as silent:
            assert client.get("/readyz").json() == {"status": "ready"}
            assert len(client.post("/search", json=SEARCH).json()["hits"]) == 3
            assert_one_arena(server)
            server.process.send_signal(signal.SIGINT)
            code, _, errors = server.wait()  # which idle connections do not hold up
            assert received(silent) == b""
    assert code == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["path"] for line in lines if line["event"] == "request"] == ["/readyz", "/search"]
    assert lines[-1]["event"] == "stopped"
    assert "play music" not in errors
    assert {"timestamp", "level", "request_id", "method", "status", "ms"} <= set(lines[0])


def assert_one_arena(server: Server) -> None:
    """Each further arena of glibc is 64 MiB of addresses, of which the rest that is not used yet has no rights."""
    parts = []
    for place, rights, *_ in map(str.split, Path(f"/proc/{server.process.pid}/maps").read_text().splitlines()):
        start, end = (int(address, 16) for address in place.split("-"))
        parts.append((start, end, rights))
    both = [((used[2], rest[2]), rest[1] - used[0]) for used, rest in pairwise(parts)]
    assert (("rw-p", "---p"), 64 << 20) not in both


def in_flight(url: str) -> int:
    return int(samples(httpx2.get(f"{url}/metrics", timeout=60).text)["requests_in_flight",])


def test_batches_in_flight_are_answered_before_it_stops(tiny_path: Path) -> None:
    batch = {"searches": [{"query": f"play music {number}", "k": 50} for number in range(20)]}
    with Server(tiny_path) as server, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(httpx2.post, f"{server.url}/search/batch", json=batch, timeout=60) for _ in range(6)]
        # All have arrived when those in flight (one of them asks for the metrics) and those answered are all.
        # Those answered are counted first: one that ends in between is counted in neither.
        while sum(future.done() for future in asked) + in_flight(server.url) - 1 < len(asked):
            sleep(0.001)
        server.process.send_signal(signal.SIGTERM)
        assert [len(future.result().json()["results"]) for future in asked] == [20] * 6
        assert server.wait()[0] == 0


Refused = Callable[..., str]


@pytest.fixture
def refused(unconfigured: None, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return the one line of a service that does not start, in this process."""

    def line(bundle: Path, *, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> str:
        assert run({"default": bundle}, host=host, port=port, settings=Settings(**settings), workers=1) == EXIT_ERROR
        output, errors = capsys.readouterr()
        assert (output, errors.count("\n")) == ("", 1)
        assert errors.startswith("error: ")
        return errors

    return line


def test_a_taken_port_is_one_line(tiny_path: Path, refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"error: can't listen on 127.0.0.1 port {port}: Address already in use. Stop what listens there, "
        assert refused(tiny_path, port=port) == expected + "or name another port: --port 0 takes a free one.\n"


@pytest.mark.usefixtures("unconfigured")
def test_a_journal_without_keys_is_told(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run({"default": tiny_path}, host="256.0.0.1", settings=Settings(live=tmp_path), workers=1) == EXIT_ERROR
    assert "no document can be written without API keys" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["256.0.0.1", "a" * 70, "a..b", "é" * 70])
def test_a_host_that_is_none_is_one_line(tiny_path: Path, refused: Refused, host: str) -> None:
    assert refused(tiny_path, host=host).startswith("error: can't listen on ")


def test_a_bad_bundle_is_one_line(tiny_bundle: Bundle, tmp_path: Path, refused: Refused) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle.path, broken)
    (broken / "dense.faiss").write_bytes(b"nothing")
    assert "dense.faiss" in refused(broken)
    assert "none" in refused(tmp_path / "none")
    with Server(broken, workers=2) as server:
        code, output, errors = server.wait()
    assert (code, output) == (EXIT_ERROR, "")
    assert errors.splitlines()[-1].startswith("error: ")
    assert "dense.faiss" in errors.splitlines()[-1]


def test_neither_models_nor_what_traces_reads_corpora_or_writes_is_loaded(tiny_path: Path) -> None:
    """Importing the service and running a search and the whole application."""
    script = """
import sys
from pathlib import Path
from fastapi.testclient import TestClient
import lightretriever.service.cli
import lightretriever.service.serving.server
from lightretriever.service.collections.collections import Collections
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
settings = Settings(deadline_ms=60_000, warm_up_queries=1)
with Collections.open({"one": Path(sys.argv[1])}, settings) as opened, TestClient(create_app(opened)) as client:
    assert client.post("/search", json={"query": "play music"}).json()["hits"]
    assert client.get("/").status_code == 200
heavy = {"torch", "transformers", "peft", "accelerate", "safetensors", "pyserini"}
rooms = ("cluster", "corpus", "evaluation", "pipeline", "training")
begin = ("opentelemetry.sdk", "opentelemetry.exporter", *(f"lightretriever.artifacts.{room}" for room in rooms))
end = ("live.store", "live.journal", "live.overlay", "writer")
print(sorted(name for name in sys.modules if name in heavy or name.startswith(begin) or name.endswith(end)))
"""
    command = [sys.executable, "-c", script, str(tiny_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_streamed_body_over_the_limit_is_refused_while_it_streams(url: str) -> None:
    with dial(url) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):
            connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_connection_is_reused_and_bodies_of_refused_requests_do_no_harm(url: str) -> None:
    with httpx2.Client(base_url=url) as client:
        for _ in range(3):
            assert client.post("/search", content=b"x" * 5_000).status_code == 415
            assert client.post("/nix", json=SEARCH).status_code == 404
            assert client.post("/search", json=SEARCH).status_code == 200


def test_headers(url: str) -> None:
    answer = httpx2.post(f"{url}/search", json=SEARCH)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "server" not in answer.headers
    for sent, same in (("", False), ("a b\t{}", False), ("a-b.c_1", True)):
        given = httpx2.get(f"{url}/livez", headers={"x-request-id": sent}).headers["x-request-id"]
        assert given == sent if same else len(given) == 16


def test_a_connection_whose_body_does_not_come_is_answered_and_closed(tiny_path: Path) -> None:
    with live_bundles(tiny_path, deadline_ms=300) as url, dial(url) as connection:
        connection.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"kind":"invalid_body"' in answer


def test_a_client_that_leaves_makes_one_quiet_line(tiny_path: Path) -> None:
    """Before its body is there, before its answer, in the middle of a large one; with FIN and with RST."""
    search = json.dumps(SEARCH).encode()
    batch = json.dumps({"searches": [{"query": "play music", "k": 100}] * 60}).encode()
    head = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    sent = [("/search", search, 5), ("/search", search, None), ("/search/batch", batch, None)]
    with Server(tiny_path) as server:
        port = server.port
        url = f"http://127.0.0.1:{port}"
        for path, body, length in sent * 5:
            for linger in (b"", struct.pack("ii", 1, 0)):
                with dial(port) as connection:
                    connection.sendall(head.format(path, len(body)).encode() + body[:length])
                    sleep(0.01)
                    if linger:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wait_until(lambda: in_flight(url) <= 1)
        metrics = samples(httpx2.get(f"{url}/metrics", timeout=60).text)
        code, _, errors = server.stop()
    assert code == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    assert not any("exception" in line for line in lines)
    posts = [line for line in lines if line.get("method") == "POST"]
    assert len(posts) == 2 * 5 * len(sent)
    assert {line["status"] for line in posts} <= {200, 499, 503}
    left = [line for line in posts if (line["path"], line["status"]) == ("/search", 499)]
    assert metrics["request_seconds_count", "/search", "499"] == len(left) >= 2 * 5  # those whose body was not there
    assert max(map(len, errors.splitlines())) < 500
