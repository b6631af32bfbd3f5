"""The service behind nginx, Caddy and HAProxy: as docs/howto/tls.md configures them, and with their defaults."""

import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from mcp.client.client import Client

from lightretriever.service.client import AnswerError, SearchClient
from tests.docs.pages import ROOT, blocks
from tests.service.process import Server
from tests.support.tiny import TinyDocument, make_tiny_bundle
from tests.support.waiting import free_port, wait_until
from tests.support.wire import self_signed

_NGINX = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    {http}
}}
"""


def nginx(http: str, port: int, folder: Path) -> AbstractContextManager[None]:
    """Run nginx with the content of `http { }`, until `port` is listened at, with its files in `folder`."""
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # the folders of pytest are their owner's alone
    config.write_text(_NGINX.format(user=user, folder=folder, http=http))
    return _running([_program("nginx"), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)], port)


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"there is no {name}: run deploy/install/install-system slow, or put it on PATH")
    return found


@contextmanager
def _running(command: list[str], port: int, more: dict[str, str] | None = None) -> Iterator[None]:
    env = {**os.environ, **(more or {})}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None, f"{command[0]} has ended: {process.communicate()[1]}"
            yield
        finally:
            process.terminate()
            process.communicate()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60):
        return True
    return False


pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "howto" / "tls.md"
ODD_IDS = ["https://example.org/a//b?x=1#y", "50% off", "a/../b", ".", "a\\b", "ü/é"]
SEARCH = {"query": "play music", "k": 5}
Proxy = Callable[[str, Path, Path, int], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose ids are hard to write in an address."""
    documents = [TinyDocument(name, "Player", f"play music {name}", 2000) for name in [*ODD_IDS, "plain", "other"]]
    return make_tiny_bundle(tmp_path_factory.mktemp("odd") / "bundle", documents=documents).path


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    with Server(bundle, log_level="error") as server:
        yield server.url


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate of 127.0.0.1 and its key, named as in the page."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder / "fullchain.pem", folder / "privkey.pem")
    return folder


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate / "fullchain.pem"))


def documented(beginning: str) -> str:
    """The block of the page that begins so."""
    (found,) = (block.text for block in blocks(PAGE) if block.text.startswith(beginning))
    return found


def documented_nginx(url: str, certificate: Path, folder: Path, port: int) -> AbstractContextManager[None]:
    """The page's nginx, with the location below a path in the server, in the words of the installed version."""
    below, location = documented("map $request_uri"), documented("location /find/")
    http = documented("upstream search").replace("    location / {", f"{location}    location / {{")
    for given, here in (
        ("    listen 443 ssl;\n    http2 on;\n", f"    listen 127.0.0.1:{port} ssl http2;\n"),
        ("/etc/ssl/search", str(certificate)),
        ("127.0.0.1:8080", url.removeprefix("http://")),
    ):
        assert given in http
        http = http.replace(given, here)
    return nginx(below + http, port, folder)


def documented_caddy(url: str, certificate: Path, folder: Path, port: int) -> AbstractContextManager[None]:
    """The page's Caddy, which gets a certificate in place of fetching one."""
    site = documented("search.example.org {").replace("127.0.0.1:8080", url.removeprefix("http://"))
    files = f"{certificate}/fullchain.pem {certificate}/privkey.pem"
    site = site.replace("search.example.org {", f"https://127.0.0.1:{port} {{\n    tls {files}")
    folder.mkdir()
    config = folder / "Caddyfile"
    config.write_text("{\n    admin off\n    auto_https disable_redirects\n    skip_install_trust\n}\n" + site)
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return _running([_program("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)], port, homes)


DOCUMENTED = [documented_nginx, documented_caddy]


def curl(*arguments: str) -> tuple[int, str, str]:
    """Return the status, the version of HTTP and the body."""
    command = ["curl", "--silent", "--show-error", "--max-time", "120", "--write-out", "\n%{http_code} %{http_version}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    body, _, end = done.stdout.rpartition("\n")
    status, version = end.split()
    return int(status), version, body


@pytest.mark.parametrize("proxy", DOCUMENTED)
def test_a_documented_proxy_speaks_tls_and_http2(proxy: Proxy, bundle: Path, certificate: Path, tmp_path: Path) -> None:
    port = free_port()
    with Server(bundle, log_level="info") as server:
        url = server.url
        with proxy(url, certificate, tmp_path / "proxy", port):
            https = f"https://127.0.0.1:{port}"
            with httpx2.Client(verify=trusting(certificate), timeout=120) as client:
                one, other = (client.post(f"{base}/search", json=SEARCH).json()["hits"] for base in (url, https))
            assert one == other
            assert len(one) == 5
            options = ("--cacert", str(certificate / "fullchain.pem"), "--http2")
            for _ in range(5):
                assert curl(*options, f"{https}/readyz") == (200, "2", '{"status":"ready"}')
            forged = ("--interface", "127.0.0.3", "--header", "X-Forwarded-For: 192.0.2.7")
            assert curl(*options, *forged, f"{https}/info")[0] == 200
            lines = map(str.split, Path("/proc/net/tcp").read_text().splitlines())
            states = [line[3] for line in lines if line[2] == f"0100007F:{server.port:04X}"]
            assert states.count("01") == 1  # all through the same established connection
        _, _, said = server.stop()
    (line,) = (line for line in map(json.loads, said.splitlines()) if line.get("path") == "/info")
    assert line["client"] == "127.0.0.3"


def bare_nginx(url: str, _: Path, folder: Path, port: int) -> AbstractContextManager[None]:
    """nginx with nothing but the address."""
    return nginx(f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }}", port, folder)


@pytest.mark.parametrize(
    ("proxy", "path"), [(documented_nginx, ""), (documented_nginx, "/find"), (documented_caddy, ""), (bare_nginx, "")]
)
def test_any_id_reaches_the_service(proxy: Proxy, path: str, url: str, certificate: Path, tmp_path: Path) -> None:
    port = free_port()
    scheme = "https" if proxy in DOCUMENTED else "http"
    with (
        proxy(url, certificate, tmp_path / "proxy", port),
        httpx2.Client(verify=trusting(certificate), timeout=120) as client,
    ):
        for name in ODD_IDS:
            written = quote(name, safe="").replace(".", "%2E")
            answer = client.get(f"{scheme}://127.0.0.1:{port}{path}/documents/{written}")
            assert (answer.status_code, answer.json()["id"]) == (200, name)


def test_below_a_path_page_and_redirects_stay_there(url: str, certificate: Path, tmp_path: Path) -> None:
    port = free_port()
    options = ("--cacert", str(certificate / "fullchain.pem"), "--location")
    with documented_nginx(url, certificate, tmp_path / "proxy", port):
        below = f"https://127.0.0.1:{port}/find"
        for path in ("/", "/collections/default"):
            status, _, body = curl(*options, f"{below}{path}")
            assert (status, "<!doctype html>" in body) == (200, True), path
            assert not re.findall(r"(?:href|src)=\"/[^/]", body), path
        _, _, description = curl(*options, f"{below}/openapi.json")
        assert json.loads(description)["servers"] == [{"url": "."}]


def test_nginx_refuses_a_body_that_the_service_refuses(url: str, certificate: Path, tmp_path: Path) -> None:
    """A byte more than both allow is nginx's own page, which our client quotes."""
    port, body = free_port(), tmp_path / "body.json"
    posting = ("--header", "Content-Type: application/json", "--data-binary", f"@{body}")
    options = ("--cacert", str(certificate / "fullchain.pem"))
    with documented_nginx(url, certificate, tmp_path / "proxy", port):
        base = f"https://127.0.0.1:{port}"
        frame = len(json.dumps({"query": ""}))
        body.write_text(json.dumps({"query": "x" * (1_048_576 - frame)}))
        status, _, answer = curl(*options, *posting, f"{base}/search")
        assert (status, json.loads(answer)["errors"][0]["field"]) == (422, "query")
        body.write_text(json.dumps({"query": "x" * (1_048_577 - frame)}))
        assert curl(*options, *posting, f"{base}/search")[0] == 413

    with (
        bare_nginx(url, certificate, tmp_path / "bare", port),
        SearchClient(f"http://127.0.0.1:{port}", timeout_s=120, attempts=1) as client,
        pytest.raises(AnswerError, match="413 Request Entity Too Large"),
    ):
        client.search("x" * 1_048_577)


def test_haproxys_own_check_fails_and_the_documented_one_passes(url: str, tmp_path: Path) -> None:
    dead, port, other = (free_port() for _ in range(3))
    backend = documented("backend search").replace("127.0.0.1:8080", url.removeprefix("http://"))
    backend = backend.replace("127.0.0.1:8081", f"127.0.0.1:{dead}").replace(" check\n", " check inter 100ms\n")
    plain = backend.replace("backend search", "backend plain").replace("    http-check send meth GET uri /readyz\n", "")
    fronts = "".join(
        f"frontend at_{at}\n    bind 127.0.0.1:{at}\n    default_backend {name}\n"
        for at, name in ((port, "search"), (other, "plain"))
    )
    times = "defaults\n    mode http\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n"
    config = tmp_path / "haproxy.cfg"
    config.write_text(f"{times}{fronts}{backend}{plain}\n")
    with _running([_program("haproxy"), "-db", "-f", str(config)], port):
        while curl(f"http://127.0.0.1:{other}/livez")[0] != 503:  # until its checks have failed
            time.sleep(0.05)
        with SearchClient(f"http://127.0.0.1:{port}", timeout_s=120, attempts=1) as client:
            for _ in range(20):
                assert client.search("play music", k=1).hits


@pytest.mark.parametrize("host", ["", "proxy_set_header Host 127.0.0.1:{port};"])
def test_the_tools_for_language_models_stand_behind_nginx(url: str, host: str, tmp_path: Path) -> None:
    """nginx's own Host is that of `proxy_pass`; `$host` is what the tools refuse."""
    port, tools = free_port(), free_port()
    command = [sys.executable, "-m", "lightretriever.service.cli", "mcp", url, "--http", f"127.0.0.1:{tools}"]
    header = host.format(port=tools)
    http = f"""server {{
        listen 127.0.0.1:{port};
        location /mcp {{ {header} proxy_buffering off; proxy_pass http://127.0.0.1:{tools}; }}
        location /other/mcp {{ proxy_set_header Host search.example.org; proxy_pass http://127.0.0.1:{tools}/mcp; }}
    }}"""

    async def ask() -> None:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            result = await client.call_tool("search", {"query": "play music", "k": 3})
            assert len((result.structured_content or {})["hits"]) == 3

    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("tools at http://")
            with nginx(http, port, tmp_path / "proxy"):
                asyncio.run(ask())
                posting = ("--header", "Content-Type: application/json", "--data", "{}")
                assert curl(*posting, f"http://127.0.0.1:{port}/other/mcp")[0] == 421
        finally:
            process.terminate()
            process.communicate()
