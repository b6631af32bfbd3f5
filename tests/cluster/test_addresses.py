"""What is at the address of a cluster: checked before anything is written, and reached with TLS and credentials."""

import base64
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import sleep
from traceback import format_exception

import pytest
from opensearchpy import OpenSearch

from lightretriever.artifacts.cluster.client import Cluster, ClusterAddress, connect
from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError
from tests.support.cluster import in_a_thread
from tests.support.wire import self_signed
from tests.support.wordings import raises

OPENSEARCH = json.dumps({"version": {"distribution": "opensearch", "number": "3.6.0"}})


@contextmanager
def answering(
    body: str,
    status: int = 200,
    *,
    secure: tuple[Path, Path] | None = None,
    seen: list[str | None] | None = None,
    hung: threading.Event | None = None,
) -> Iterator[str]:
    """A server that gives every request this answer, but none while `hung` is set, and notes who asks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is the library's
            if seen is not None:
                seen.append(self.headers["authorization"])
            while hung is not None and hung.is_set():
                sleep(0.01)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if secure is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*secure)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with in_a_thread(server) as url:
        yield url.replace("http:", "https:") if secure else url


def refused(address: ClusterAddress) -> str:
    with pytest.raises(ClusterError) as error:
        connect(address, timeout_s=5)
    assert "\n" not in str(error.value)
    assert error.value.remedy
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("<html>", 200, "is not OpenSearch: its answer is no JSON"),
        ("[]", 200, "is not OpenSearch"),
        ('{"version": {"number": "8.1.0"}}', 200, "is not OpenSearch"),
        (OPENSEARCH.replace("3.6.0", "2.18.0"), 200, "is OpenSearch 2.18.0; 2.19 is needed"),
        ("{}", 401, "does not know who asks"),
        ('{"error": {"reason": "no permissions for [main]"}}', 403, "no permissions for"),
    ],
)
def test_what_is_no_cluster_for_us_is_refused(body: str, status: int, message: str) -> None:
    with answering(body, status) as url:
        found = refused(ClusterAddress(url))
    assert message in found
    assert url in found


@pytest.mark.parametrize(
    "urls",
    [
        *("", " , ", "localhost:9200", "ftp://host", "http://"),
        *("http://host:abc", "http://host:99999", "http://host:0"),
        *("http://[::1", "http://me@host:9200", "http://:s3cret@host:9200", "me:s3cret@host:9200"),
        *(f"https://me:{secret}@host:9200" for secret in ("s3cret/x", "1/s3cret", "1?s3cret", "1#s3cret", "1,s3cret")),
        "http://127.0.0.1:9,https://me:s3cret/x@host",
    ],
)
def test_what_is_no_address_is_refused(urls: str) -> None:
    with pytest.raises(ClusterError) as error:
        connect(ClusterAddress(urls), timeout_s=5)
    assert error.value.remedy.startswith("Write http://HOST:PORT or https://HOST:PORT.")
    assert "s3cret" not in "".join(format_exception(error.value))


def test_nobody_listens() -> None:
    found = refused(ClusterAddress("http://user:secret@127.0.0.1:9"))
    assert "http://127.0.0.1:9 can't be reached" in found
    assert "secret" not in found


@pytest.mark.parametrize(("patience_s", "times"), [(0.0, 1), (100.0, 2)])
def test_a_node_that_does_not_answer_is_left_alone(patience_s: float, times: int) -> None:
    hung, seen = threading.Event(), list[str | None]()
    with answering(OPENSEARCH) as url, answering(OPENSEARCH, seen=seen, hung=hung) as other:
        cluster = connect(ClusterAddress(f"{url},{other}"), timeout_s=60, patience_s=patience_s)
        seen.clear()
        hung.set()
        for _ in range(4):  # the nodes take turns
            with suppress(ClusterTimeoutError), cluster.translated():
                cluster.client.info(request_timeout=2)
        hung.clear()
        cluster.close()
    assert len(seen) == times


def test_user_and_api_key_are_sent() -> None:
    seen: list[str | None] = []
    with answering(OPENSEARCH.replace("3.6.0", "2.19.1"), seen=seen) as url:  # an older version that can be used
        for address in (ClusterAddress(url, "me", "pässword"), ClusterAddress(url, api_key="abc"), ClusterAddress(url)):
            connect(address, timeout_s=5).close()
    basic = base64.b64encode("me:pässword".encode()).decode()
    assert seen == [f"Basic {basic}", "ApiKey abc", None]
    assert "pässword" not in repr(ClusterAddress(url, "me", "pässword", "key"))


def test_a_certificate_needs_its_authority(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    self_signed(certificate, key)
    with answering(OPENSEARCH, secure=(certificate, key)) as url:
        connect(ClusterAddress(url, ca_file=certificate), timeout_s=5).close()
        assert "--ca-file" in refused(ClusterAddress(url))
        assert "missing.pem: no cert" in refused(ClusterAddress(url, ca_file=tmp_path / "missing.pem"))
        (tmp_path / "empty.pem").write_text("")
        assert "empty.pem" in refused(ClusterAddress(url, ca_file=tmp_path / "empty.pem"))


def test_a_forked_process_does_not_read_its_parents_answers() -> None:
    """Its own number stands for the parent's that opened the connection."""
    cluster = Cluster(OpenSearch("http://127.0.0.1:1"), "127.0.0.1:1", (2, 19), process=os.getppid())
    with raises(ClusterError, naming="another process"), cluster.translated():
        cluster.client.info()
    cluster.close()
