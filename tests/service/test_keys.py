"""API keys: who may do what, what a wrong file is told, and that no key ever shows up anywhere."""

import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import ForbiddenError, SettingsError
from lightretriever.service.http.api_keys import ApiKeys
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import client_of_folder, live_bundles
from tests.support.keys import keys_file, new_key
from tests.support.waiting import wait_until
from tests.support.wordings import raises

SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0)
GUARDED = (
    ("POST", "/search", {"query": "music"}),
    ("POST", "/search/batch", {"searches": [{"query": "music"}]}),
    ("GET", "/search?q=music", None),
    ("POST", "/encode", {"text": "music"}),
    ("GET", "/documents/music", None),
    ("GET", "/terms/music", None),
    ("POST", "/admin/reload", None),
    ("PUT", "/documents/music", {"fields": {"text": "music"}}),
    ("POST", "/documents", {"id": "music", "fields": {"text": "music"}}),
    ("DELETE", "/documents/music", None),
)
OPEN = ("/livez", "/readyz", "/info", "/metrics", "/", "/openapi.json")
SEARCHER, _SEARCH_ENTRY = new_key("searcher", ["search"])
ADMIN, _ADMIN_ENTRY = new_key("admin", ["admin"])
BOTH, _BOTH_ENTRY = new_key("both", ["search", "admin"])


@pytest.fixture(scope="module")
def three_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keys_file(tmp_path_factory.mktemp("keys") / "keys.json", _SEARCH_ENTRY, _ADMIN_ENTRY, _BOTH_ENTRY)


@pytest.fixture(scope="module")
def guarded(tiny_bundle: Bundle, three_keys: Path) -> Iterator[TestClient]:
    settings = SETTINGS.model_copy(update={"api_keys_file": three_keys})
    with client_of_folder(tiny_bundle.path, settings) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def as_bytes(headers: dict[str, str]) -> dict[bytes, bytes]:
    """As a client sends what is not ASCII."""
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


@pytest.mark.parametrize(("method", "path", "body"), GUARDED, ids=[path for _, path, _ in GUARDED])
def test_a_key_opens_what_it_is_for_and_without_a_known_one_nothing_opens(
    guarded: TestClient, method: str, path: str, body: object
) -> None:
    writing = method in ("PUT", "DELETE") or path == "/documents"
    needed = "admin" if writing or path.startswith("/admin") else "search"
    lines = {"Content-Type": "application/x-ndjson"} if path == "/documents" else {}
    for key, scopes in ((SEARCHER, ["search"]), (ADMIN, ["admin"]), (BOTH, ["search", "admin"])):
        answer = guarded.request(method, path, json=body, headers=bearer(key) | lines)
        if needed in scopes:
            assert answer.status_code == (409 if writing else 200), answer.text
            if writing:  # documents of a bundle alone don't change
                assert answer.json()["kind"] == "immutable"
                assert "build a new bundle" in answer.json()["detail"]
        else:
            assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
            assert f"no scope '{needed}'" in answer.json()["detail"]
    wrong = [{}, bearer("lr_wrong"), bearer(SEARCHER + "x"), bearer(SEARCHER[:-1]), bearer(_BOTH_ENTRY.sha256)]
    wrong += [{"authorization": value} for value in (BOTH, f"Basic {BOTH}", "Bearer", "Bearer ", f"Token {BOTH}")]
    wrong += [{"x-api-key": BOTH}, {"authorization": "Bearer ÿ"}]
    for headers in wrong:
        answer = guarded.request(method, path, json=body, headers=as_bytes(headers))
        assert (answer.status_code, answer.json()["kind"]) == (401, "unauthorized"), headers
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert guarded.request(method, f"{path}?key={BOTH}", json=body).status_code == 401


def test_routes_of_operation_are_open_and_no_body_is_read_before_the_key(guarded: TestClient) -> None:
    for path in OPEN:
        assert guarded.get(path).status_code == 200
    assert "examples" not in guarded.get("/info").json()  # which are of documents
    assert guarded.post("/search", content=b"x" * 2_000_000).status_code == 401
    spelt = {"authorization": f"bEARER  {SEARCHER} "}
    assert guarded.post("/search", json={"query": "music"}, headers=spelt).status_code == 200


def test_the_description_names_the_keys(guarded: TestClient, client: TestClient) -> None:
    described = guarded.get("/openapi.json").json()
    assert described["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    secured = {
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if operation.get("security") == [{"key": []}]
    }
    assert secured == {(method, path.partition("?")[0].replace("/music", "/{id}")) for method, path, _ in GUARDED}
    assert "security" not in client.get("/openapi.json").text.replace("security headers", "")


def test_a_reload_tells_what_is_served_and_why_it_refuses(
    tiny_bundle: Bundle, tmp_path: Path, three_keys: Path
) -> None:
    link = tmp_path / "current"
    link.symlink_to(tiny_bundle.path)
    settings = SETTINGS.model_copy(update={"api_keys_file": three_keys})
    with client_of_folder(link, settings) as client:
        same = client.post("/admin/reload", headers=bearer(ADMIN)).json()
        assert (same["swapped"], same["bundle"]["version"]) == (False, tiny_bundle.manifest.digest)
        link.unlink()
        refused = client.post("/admin/reload", headers=bearer(ADMIN))
        assert (refused.status_code, refused.json()["kind"]) == (409, "bundle_refused")
        assert "no such folder" in refused.json()["detail"]
        assert client.post("/search", json={"query": "music"}, headers=bearer(BOTH)).status_code == 200
        # No request can name what is served.
        for path in ("/admin/reload?path=/etc", "/admin/reload"):
            other = client.post(path, json={"path": "/etc"}, headers=bearer(ADMIN))
            assert "/etc" not in other.json()["detail"]


@pytest.mark.usefixtures("unconfigured")
def test_no_key_is_ever_told(
    tiny_bundle: Bundle, three_keys: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither a known key nor a mistyped one: not in the log at its finest level, nor in answers and metrics."""
    mistyped = f"{BOTH}-mistyped"
    told = []
    configure_logging("debug")
    with live_bundles(tiny_bundle.path, api_keys_file=three_keys) as url:
        for key in (BOTH, SEARCHER, mistyped, "Ü" + BOTH):
            headers = as_bytes(bearer(key))
            for method, path, body in GUARDED:
                told.append(httpx2.request(method, url + path, json=body, headers=headers, timeout=60))
        with monkeypatch.context() as patched:
            patched.setattr(SearchEngine, "answer", lambda *_, **__: 1 / 0)
            told.append(httpx2.post(f"{url}/search", json={"query": "a"}, headers=bearer(BOTH), timeout=60))
            assert told[-1].status_code == 500
        told += [httpx2.get(f"{url}/{path}") for path in ("metrics", "info", "openapi.json")]
    written = "".join(capfd.readouterr())
    assert written.count('"event":"request"') == len(told)
    assert "ZeroDivisionError" in written
    everything = written + "".join(answer.text + str(answer.headers) for answer in told)
    for key in (BOTH, SEARCHER):
        assert key.removeprefix("lr_") not in everything


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{", "[" * 3_000, "lr_secret: 1\nlr_secret: 1", "keys: []"),
        *(f"- name: web\n  {rest}" for rest in ("scopes: [search]", "sha256: lr_secret\n  scopes: [search]")),
        *(f"- name: web\n  sha256: HASH\n  scopes: {rest}" for rest in ("[all]", "[]", "[search]\n  key: lr_secret")),
        "- name: a b\n  sha256: HASH\n  scopes: [search]",
        "- {name: a, sha256: HASH, scopes: [search]}\n- {name: b, sha256: HASH, scopes: [search]}",
    ],
)
def test_a_wrong_file_is_told_what_and_not_the_value(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content.replace("HASH", "ab" * 32))
    with raises(SettingsError, naming="keys.yaml") as caught:
        ApiKeys(file)
    assert "lr_secret" not in str(caught.value)
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, OSError)


def test_keys_come_and_go_with_the_file(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = keys_file(tmp_path / "keys.json", _SEARCH_ENTRY)
    monkeypatch.setattr(engine, "settings", engine.settings.model_copy(update={"api_keys_file": file}))

    def status(key: str) -> int:
        return client.post("/search", json={"query": "music"}, headers=bearer(key)).status_code

    with TestClient(create_app(engine)) as client:
        wait_until(lambda: [status(key) for key in (SEARCHER, BOTH)] == [200, 401])
        keys_file(tmp_path / "next", _BOTH_ENTRY).replace(file)
        wait_until(lambda: [status(key) for key in (SEARCHER, BOTH)] == [401, 200])
        file.write_text("[")
        wait_until(lambda: "API keys stay as they were" in caplog.text)
        assert [status(key) for key in (SEARCHER, BOTH)] == [401, 200]
        monkeypatch.setattr(Metrics, "refresh", lambda _: 1 / 0)  # a full disk, say
        keys_file(file, _SEARCH_ENTRY, _BOTH_ENTRY)
        wait_until(lambda: [status(key) for key in (SEARCHER, BOTH)] == [200, 200])


def names(keys: ApiKeys) -> list[str]:
    keys.look()
    return [entry.name for entry in keys.value]


def test_whatever_keeps_a_file_from_being_read_it_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many open files, a folder or nothing in its place, a pipe, a link to itself, too many bytes: all may pass."""
    file = keys_file(tmp_path / "keys.json", _SEARCH_ENTRY, _BOTH_ENTRY)
    keys, revoked = ApiKeys(file), keys_file(tmp_path / "revoked.json", _BOTH_ENTRY)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    hindered: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1])), lambda: None),
        (file.mkdir, file.rmdir),
        (lambda: os.mkfifo(file), file.unlink),
        (lambda: file.symlink_to(file), file.unlink),
        (lambda: file.write_bytes(b" " * (1 << 20) + b"x"), file.unlink),
        (lambda: None, lambda: None),
    ]
    for hinder, free in hindered:
        keys_file(file, _SEARCH_ENTRY, _BOTH_ENTRY)
        assert names(keys) == ["searcher", "both"]
        assert keys.problem is None
        changed = revoked.read_bytes()
        file.unlink()
        caplog.clear()
        try:
            hinder()
            assert [names(keys), names(keys)] == [["searcher", "both"]] * 2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert keys.problem is not None
        assert [record.getMessage() for record in caplog.records] == ["API keys stay as they were"]  # told once
        free()
        file.write_bytes(changed)
        assert names(keys) == ["both"]


def test_every_other_content_is_parsed_once_and_the_former_one_is_good_again(tmp_path: Path) -> None:
    """Also one that keeps size and time."""
    good = (file := keys_file(tmp_path / "keys.json", _SEARCH_ENTRY)).read_bytes()
    keys, before = ApiKeys(file), file.stat()
    for bad in (b"[", b"", b"[]", b"\xff"):
        file.write_bytes(bad)
        assert names(keys) == ["searcher"]
        assert keys.problem is not None
        file.write_bytes(good)
        assert names(keys) == ["searcher"]
        assert keys.problem is None
    file.write_bytes(good.replace(b"searcher", b"somebody"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert names(keys) == ["somebody"]


def test_the_commands_of_the_page_make_a_key_that_works(tmp_path: Path) -> None:
    section = Path("docs/service.md").read_text().partition("## API keys")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0]
    made = subprocess.run(["sh", "-euc", commands], cwd=tmp_path, capture_output=True, text=True, check=True)
    key, known = made.stdout.strip(), ApiKeys(tmp_path / "keys.yaml")
    assert re.fullmatch(r"lr_[0-9a-f]{64}", key)
    assert known.name(f"Bearer {key}", "search", "default") == "web"
    with raises(ForbiddenError):
        known.name(f"Bearer {key}", "admin", "default")
    assert key not in (tmp_path / "keys.yaml").read_text()
