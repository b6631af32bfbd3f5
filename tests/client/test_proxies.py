"""Proxies that the environment names, for both clients and the commands."""

import pytest

from lightretriever.service.client import ClientError, UnreachableError
from tests.client.both import Maker
from tests.client.scripted import Scripted, answer
from tests.support.waiting import free_port
from tests.support.wordings import raises


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_asked(make: Maker, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str) -> None:
    with Scripted(answer()) as proxy:
        monkeypatch.setenv(variable, proxy.url.replace("http://", scheme))
        with make("http://search.invalid:8080") as client:
            assert client.search("music").hits[0].id == "a"
        assert proxy.seen[0]["path"] == "http://search.invalid:8080/search"


@pytest.mark.parametrize("exempt", ["127.0.0.1", "*", "example.org, 127.0.0.1", ".0.0.1", "{host}"])
def test_hosts_without_a_proxy(make: Maker, monkeypatch: pytest.MonkeyPatch, exempt: str) -> None:
    with Scripted(answer()) as server:
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", exempt.format(host=server.url.removeprefix("http://")))
        with make(server.url) as client:
            assert client.search("music").hits[0].id == "a"


def test_a_dead_proxy_and_one_that_refuses(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{free_port()}")
    with Scripted(answer({}, 403)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        for url in ("http://search.invalid", "https://search.invalid"):
            with make(url, attempts=1) as client, raises(UnreachableError, naming="HTTP_PROXY") as error:
                client.search("music")
            assert "secret" not in str(error.value)


@pytest.mark.parametrize("proxy", ["socks5://user:secret@h:1", "ftp://user:secret@h:1", "http://a:b:c", "socks4://h:1"])
def test_what_is_no_proxy(make: Maker, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """Without the package socksio, SOCKS is none."""
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with raises(ClientError, naming="unset HTTP_PROXY") as error:
        make("http://search.invalid")
    assert "secret" not in str(error.value)
