"""Several bundles in one process: each answers below its own path and is swapped alone, keys may be bound to some."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.collections.collections import Collections, parse_folders
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import create_app
from tests.service.conftest import SETTINGS
from tests.service.process import Server, flip
from tests.support.asking import ids
from tests.support.keys import keys_file, new_key
from tests.support.tiny import make_tiny_bundle, tiny_documents
from tests.support.waiting import wait_until
from tests.support.wordings import raises

KEY, ENTRY = new_key("notes-only", ["search"], ["notes"])
ALL, ALL_ENTRY = new_key("everything", ["search", "admin"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("collections")
    for name, count, seed in (("notes", 40, 1), ("shop", 60, 2)):
        make_tiny_bundle(root / name, documents=tiny_documents(count, seed=seed))
    return {"notes": root / "notes", "shop": root / "shop"}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[TestClient]:
    with Collections.open(folders, SETTINGS) as collections, TestClient(create_app(collections)) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def test_each_collection_answers_below_its_path_and_the_first_above(client: TestClient) -> None:
    listed = client.get("/collections").json()["collections"]
    assert [(one["name"], one["documents"], one["ready"]) for one in listed] == [
        ("notes", 40, True),
        ("shop", 60, True),
    ]
    for name, documents in (("notes", 40), ("shop", 60)):
        below = f"/collections/{name}"
        info = client.get(f"{below}/info").json()
        assert (info["bundle"]["documents"], info["collections"]) == (documents, ["notes", "shop"])
        assert client.get(f"{below}/readyz").status_code == 200
        assert client.get(f"{below}/documents/music").json()["id"] == "music"
        assert client.get(f"{below}/terms/music").status_code == 200
        assert client.post(f"{below}/encode", json={"text": "music"}).status_code == 200
        assert client.get(f"{below}/search?q=music").json()["hits"]
        batch = client.post(
            f"{below}/search/batch", json={"searches": [{"query": "music", "k": 200, "candidates": 500}]}
        )
        assert len(batch.json()["results"][0]["hits"]) == documents
    body = {"query": "a small game over the network", "k": 5}
    paths = ("", "/collections/notes", "/collections/shop")
    first, notes, shop = (ids(client.post(f"{path}/search", json=body).json()) for path in paths)
    assert first == notes != shop
    text = client.get("/metrics").text  # of all
    assert "lightretriever_documents 100.0" in text
    assert "lightretriever_ready 1.0" in text
    assert text.count("lightretriever_bundle_info{") == 2


def test_paths_that_are_none(client: TestClient) -> None:
    for path in ("/collections/nix/search", "/collections/nix/", "/collections/nix", "/collections/https:evil.example"):
        problem = client.request("POST" if path.endswith("search") else "GET", path, json={"query": "music"}).json()
        assert (problem["status"], problem["kind"]) == (404, "not_found")
        assert "there are: notes, shop" in problem["detail"]
        assert problem["instance"] == path
    assert client.get("/collections/notes/nix").json()["kind"] == "not_found"
    moved = client.get("/collections/notes", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (307, "notes/")
    moved = client.get("/collections/notes?q=a%20%C3%BC&k=3", follow_redirects=False)
    assert moved.headers["location"] == "notes/?q=a%20%C3%BC&k=3"
    assert "LightRetriever" in client.get("/collections/notes").text


def test_the_type_of_a_problem_leads_to_the_description_of_its_kind(client: TestClient) -> None:
    """Also behind a proxy that takes a prefix off."""
    paths = ("/search", "/search/batch", "/collections/notes/search")
    for method, path in (*(("POST", path) for path in paths), ("GET", "/collections/nix/search")):
        problem = client.request(method, path, json={"k": 0}).json()
        for prefix in ("", "/a/prefix"):
            address = urljoin(f"http://example.org{prefix}{path}", problem["type"])
            assert address == f"http://example.org{prefix}/openapi.json#/x-error-kinds/{problem['kind']}"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_each_is_swapped_alone_and_keys_are_bound(folders: dict[str, Path], tmp_path: Path, workers: int) -> None:
    keys = keys_file(tmp_path, ENTRY, ALL_ENTRY)
    served = {name: Path(shutil.copytree(folder, tmp_path / f"{name}-1")) for name, folder in folders.items()}
    links = {name: tmp_path / name for name in served}
    for name, link in links.items():
        link.symlink_to(served[name])
    with Server(links, api_keys_file=keys, watch_s=0, workers=workers) as server:
        assert server.ready_line.startswith("Ready: 100 documents of ")
        url = server.url
        with SearchClient(f"{url}/collections/notes", api_key=KEY, timeout_s=90) as notes:
            assert notes.info().bundle.documents == 40
            assert notes.search("music").hits
            assert [one.name for one in notes.collections().collections] == ["notes", "shop"]
            with raises(AnswerError, naming="notes-only"):
                notes.reload()
        with SearchClient(f"{url}/collections/shop", api_key=KEY, timeout_s=90) as shop:
            with raises(AnswerError, naming="notes-only") as refused:
                shop.search("music")
            assert (refused.value.status, refused.value.kind) == (403, "forbidden")
            with raises(AnswerError, naming="notes-only"):
                shop.delete_document("music")
        make_tiny_bundle(tmp_path / "shop-2", documents=tiny_documents(70, seed=3))
        flip(links["shop"], tmp_path / "shop-2")
        with SearchClient(f"{url}/collections/shop", api_key=ALL, timeout_s=90) as shop:
            assert shop.reload().swapped
            wait_until(lambda: shop.info().bundle.documents == 70)  # another worker follows
            assert len(shop.search("music", k=100, candidates=200).hits) == 70
        with SearchClient(url, api_key=ALL, timeout_s=90) as first:
            assert not first.reload().swapped
            assert first.info().bundle.documents == 40


def test_arguments_of_serve(tmp_path: Path) -> None:
    assert parse_folders(["out/bundle"]) == {"default": Path("out/bundle")}
    assert parse_folders(["a=x", "b=y=z"]) == {"a": Path("x"), "b": Path("y=z")}
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert parse_folders([str(odd)]) == {"default": odd}
    for given in (["x", "a=y"], ["a=x", "a=y"], ["a b=x"], ["a="], ["=x"]):
        with raises(SettingsError):
            parse_folders(given)
