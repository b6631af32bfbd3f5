"""Proxies that the environment names, for both clients and the commands."""

import pytest

from lightretriever.service.client import ClientError, Retries, UnreachableError
from tests.client.both import Maker
from tests.client.scripted import Scripted, answer
from tests.support.commands import run_command
from tests.support.waiting import free_port
from tests.support.wordings import raises

ONCE = Retries(attempts=1)
VARIABLES = [name + "_PROXY" for name in ("HTTP", "HTTPS", "ALL", "NO")]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_is_asked(make: Maker, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with Scripted(answer()) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        with make("http://search.invalid:8080") as client:
            assert client.search("music").hits[0].id == "a"
        assert proxy.seen[0]["path"] == "http://search.invalid:8080/search"


@pytest.mark.parametrize("exempt", ["127.0.0.1", "*", "example.org, 127.0.0.1", ".0.0.1", "{host}"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "socks5://127.0.0.1:1", "socks5h://127.0.0.1:1", "ftp://x"])
def test_hosts_without_a_proxy(make: Maker, monkeypatch: pytest.MonkeyPatch, proxy: str, exempt: str) -> None:
    with Scripted(answer()) as server:
        monkeypatch.setenv("ALL_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", exempt.format(host=server.url.removeprefix("http://")))
        with make(server.url) as client:
            assert client.search("music").hits[0].id == "a"


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_dead_proxy_is_named_without_its_password(
    make: Maker, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv(variable, f"http://user:secret@{nobody}")
    with make("http://search.invalid", retries=ONCE) as client:
        with pytest.raises(UnreachableError) as raised:
            client.search("music")
        assert not client.ready()
    assert f"http://search.invalid by the proxy http://{nobody} ({variable}) can't be reached" in str(raised.value)
    assert "NO_PROXY" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_proxy_that_refuses_is_named(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted(answer({}, 403)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with make("https://search.invalid", retries=ONCE) as client, raises(UnreachableError, naming="search.invalid"):
            client.search("music")


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_a_proxy_by_socks_needs_its_package(make: Maker, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://user:secret@127.0.0.1:1080")
    with pytest.raises(ClientError) as raised:
        make("http://search.invalid")
    assert str(raised.value) == (
        f"ALL_PROXY names the proxy {scheme}://127.0.0.1:1080, and the package for SOCKS is not installed. "
        "Install it: pip install socksio. Or name the host in NO_PROXY: NO_PROXY=search.invalid."
    )


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:1", "http://", "http://a:b:c", "socks4://127.0.0.1:1"])
def test_what_is_no_proxy(make: Maker, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with raises(ClientError, naming="HTTP_PROXY"):
        make("http://search.invalid")


@pytest.mark.parametrize("command", [["search", "music", "--url"], ["mcp"]])
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "ftp://127.0.0.1:1"])
def test_a_command_says_it_in_one_line(monkeypatch: pytest.MonkeyPatch, command: list[str], proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    done = run_command(*command, "http://search.invalid")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ALL_PROXY names ")
    assert done.stderr.count("\n") == 1
