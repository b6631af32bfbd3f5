"""Where the service listens: all addresses of a name, on one port, or a Unix socket; and HTTPS by the service itself,
with certificates that openssl makes."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from threading import Event

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import SettingsError
from lightretriever.service.serving.config import Loop, check_tls
from lightretriever.service.serving.server import EXIT_ERROR, address_of, listening, run
from lightretriever.service.settings import Settings
from tests.service.process import Server
from tests.support.waiting import wait_until
from tests.support.wire import openssl, self_signed
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
        assert [one.family for one in listeners[:2]] == [socket.AF_INET6, socket.AF_INET]
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
            assert {one.getsockname()[0] for one in listeners} == {"127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [ELSEWHERE])
    refuse("name")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: BOTH)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refuse("localhost", port=taken.getsockname()[1])


def test_new_connections_wait_for_few_turns_of_the_event_loop() -> None:
    """In one turn, libuv accepts one connection by each socket; under load, a turn answers many searches."""
    made: list[asyncio.BaseTransport] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    async def turns(listeners: list[socket.socket]) -> int:
        loop, count = asyncio.get_running_loop(), 0
        servers = [await loop.create_server(Protocol, sock=listener) for listener in listeners]
        clients = [socket.create_connection(listeners[0].getsockname()) for _ in range(100)]
        while len(made) < len(clients):
            await asyncio.sleep(0)
            count += 1
        for transport, client in zip(made, clients, strict=True):
            transport.close()
            client.close()
        for server in servers:
            server.close()
        return count

    with listening("127.0.0.1", 0) as listeners, asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(turns(listeners)) < 20


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


PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed certificate of 127.0.0.1, its key, and the same key encrypted."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder / "certificate.pem", folder / "key.pem")
    openssl("rsa", "-aes256", "-passout", f"pass:{PASSWORD}", "-in", folder / "key.pem", "-out", folder / "locked.pem")
    return folder


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_service_speaks_https(certificates: Path, tiny_bundle: Bundle, workers: int) -> None:
    certificate, key = certificates / "certificate.pem", certificates / "key.pem"
    with Server(tiny_bundle.path, tls_certificate_file=certificate, tls_key_file=key, workers=workers) as server:
        url = server.url
        assert url.startswith("https://127.0.0.1:")
        silent = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=30)
        trusting = ssl.create_default_context(cafile=str(certificate))
        with httpx2.Client(base_url=url, verify=trusting, timeout=60) as client:
            assert client.get("/readyz").status_code == 200
            assert client.post("/search", json={"query": "music"}).json()["hits"]
        with raises(httpx2.ConnectError, naming="CERTIFICATE_VERIFY_FAILED"):
            httpx2.get(f"{url}/readyz", timeout=60)
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(url.replace("https", "http"), timeout=60)
        ours = [sys.executable, "-m", "lightretriever.service.cli", "search", "music", "--url", url]
        trust = {**os.environ, "SSL_CERT_FILE": str(certificate)}
        assert subprocess.run(ours, env=trust, timeout=120, check=False, stdout=subprocess.DEVNULL).returncode == 0
        with silent:
            assert silent.recv(1) == b""  # it is closed before the minute that asyncio leaves it


@pytest.mark.usefixtures("unconfigured")
def test_a_certificate_that_cannot_be_used_is_named_before_the_bundle_is_opened(
    certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key, locked = (certificates / f"{name}.pem" for name in ("certificate", "key", "locked"))
    openssl("genrsa", "-out", tmp_path / "other.pem", "2048")
    (tmp_path / "text.pem").write_text("no PEM")
    missing = tmp_path / "none.pem"
    for files in (
        (None, key),
        (missing, key),
        (certificate, missing),
        (certificate, tmp_path / "other.pem"),
        (tmp_path / "text.pem", key),
        (certificate, locked),
    ):
        chosen = Settings(tls_certificate_file=files[0], tls_key_file=files[1])
        with raises(SettingsError):
            check_tls(chosen)
    assert run({"default": tmp_path / "no-bundle"}, port=0, settings=chosen, workers=1) == EXIT_ERROR
    assert "which is not encrypted." in capsys.readouterr().err


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 1])
def test_a_new_certificate_is_taken_by_itself(tiny_path: Path, tmp_path: Path, workers: int) -> None:
    """A certificate that can't be used is left."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"

    def renew() -> str:
        self_signed(certificate, key)
        return certificate.read_text()

    first = renew()
    with Server(tiny_path, tls_certificate_file=certificate, tls_key_file=key, workers=workers) as server:
        port = server.port

        def served() -> set[str]:
            return {ssl.get_server_certificate(("127.0.0.1", port), timeout=60) for _ in range(4)}

        assert served() == {first}
        second = renew()
        wait_until(lambda: served() == {second})
        certificate.write_text("no PEM")
        Event().wait(3)
        assert served() == {second}
        third = renew()
        wait_until(lambda: served() == {third})
        status, _, said = server.stop()
    assert status == 0
    assert "certificates stay as they were" in said
