"""Where the service listens: all addresses of a name, on one port, or a Unix socket."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.serving.listening import address_of, listening
from tests.service.process import ROOT, Server
from tests.support.wordings import raises

BOTH = [
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
]
ELSEWHERE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))


def refuse(host: str, *, port: int = 0, kind: type[Exception] = OSError) -> None:
    """Assert that nobody can listen there."""
    with raises(kind), listening(host, port):
        pass


def test_a_name_with_two_addresses_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: BOTH)
    with listening("localhost", 0) as listeners:
        assert [one.family for one in listeners] == [socket.AF_INET6, socket.AF_INET]
        assert len({one.getsockname()[1] for one in listeners}) == 1
        for one in listeners:
            with socket.socket(one.family) as client:
                client.connect(one.getsockname())
        assert address_of("http", "localhost", listeners) == f"http://localhost:{listeners[0].getsockname()[1]}"
    assert all(one.fileno() == -1 for one in listeners)


def test_an_address_that_the_machine_lacks_is_passed_over_and_a_taken_port_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for found in ([ELSEWHERE, BOTH[-1]], [BOTH[-1], ELSEWHERE]):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        with listening("name", 0) as listeners:
            assert [one.getsockname()[0] for one in listeners] == ["127.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [ELSEWHERE])
    refuse("name")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: BOTH)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refuse("localhost", port=taken.getsockname()[1])


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 1])
def test_a_unix_socket_is_served_and_removed(tiny_bundle: Bundle, tmp_path: Path, workers: int) -> None:
    path = tmp_path / "search.sock"
    with socket.socket(socket.AF_UNIX) as left:  # as by a process that was killed
        left.bind(str(path))
    with Server(tiny_bundle.path, host=f"unix:{path}", workers=workers) as server:
        assert server.ready_line.endswith(f" at unix:{path}\n")
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://search", timeout=60) as client:
            assert client.post("/search", json={"query": "music"}).json()["hits"]
        with Server(tiny_bundle.path, host=f"unix:{path}") as other:
            status, _, said = other.wait()
            assert (status, f"can't listen on unix:{path}: Address already in use" in said) == (2, True)
        assert server.stop()[0] == 0
    assert not path.exists()


def test_a_file_is_no_socket_that_was_left(tiny_bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    refuse(f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_socket_that_is_open_already_is_taken(tiny_bundle: Bundle) -> None:
    """As systemd passes one: it listens before the service is there, so that no connection is refused."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        address, port = opened.getsockname()
        command = [sys.executable, "-m", "lightretriever.service.cli", "serve", str(tiny_bundle.path), "--workers", "1"]
        with (
            subprocess.Popen(
                [*command, "--host", f"fd:{opened.fileno()}"],
                cwd=ROOT,
                env={**os.environ, "LIGHTRETRIEVER_DEADLINE_MS": "60000", "LIGHTRETRIEVER_WARM_UP_QUERIES": "3"},
                pass_fds=[opened.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as process,
            httpx2.Client(base_url=f"http://{address}:{port}", timeout=60) as client,
        ):
            assert client.post("/search", json={"query": "music"}).json()["hits"]  # sent before the service was there
            assert process.stdout is not None
            assert process.stdout.readline().endswith(f" at http://{address}:{port}\n")
            process.terminate()
            assert process.wait(60) == 0


def test_what_is_no_open_socket_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        number = os.dup(file.fileno())
        refuse(f"fd:{number}")
        os.close(number)
    refuse(f"fd:{number}")
    with socket.socket() as idle:
        refuse(f"fd:{os.dup(idle.fileno())}")
    refuse("fd:three", kind=ValueError)
