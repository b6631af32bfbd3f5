"""The demo bundle of the repository: sound, small, and giving the answer that the README shows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.serving.demo import ARCHIVE, EXAMPLE, unpack_demo
from lightretriever.service.settings import Settings
from research.quality import demo_queries
from tests.support.asking import agree

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield unpack_demo(None)


def test_it_is_sound(bundle: Path) -> None:
    assert verify_bundle(bundle) == []


def test_it_is_unpacked_to_the_cache_once(bundle: Path) -> None:
    assert bundle.parts[-2:] == ("lightretriever", "demo")
    before = bundle.stat().st_ino
    assert unpack_demo(None).stat().st_ino == before


def test_it_is_small_enough_for_git() -> None:
    assert ARCHIVE.stat().st_size < 40_000_000


def test_its_documents_may_be_shipped(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    assert manifest.corpus.name == "debian-package-descriptions"
    assert manifest.model.licence == "Apache-2.0"
    assert manifest.sparse.impacts == "bm25", "then the README's words on the demo need another look"


def test_letters_typed_at_random_match_nothing(bundle: Path) -> None:
    queries = {"asdkjh sdkjfhk": "none", "qqqq": "none", "the qqqq": "none", "play music": "strong", "git": "strong"}
    with SearchEngine.open(Bundle.open(bundle), Settings(deadline_ms=60_000)) as engine:
        assert {query: engine.search(SearchRequest(query=query)).matched for query in queries} == queries


def test_expected_packages_are_found_as_often_as_recorded(bundle: Path) -> None:
    queries = demo_queries.read_queries()
    assert (len(queries), sum(query["kept_apart"] for query in queries)) == (30, 20)
    documents = Bundle.open(bundle)
    with documents.sparse() as index:
        assert [one for query in queries for one in query["expected"] if index.ordinal(one) is None] == []
    recorded = json.loads((ROOT / "docs" / "results" / "demo-queries.json").read_text(encoding="utf-8"))
    found = demo_queries.measure(bundle, queries)
    for group in ("looked at", "kept apart"):
        assert found[group] == recorded[group]


def test_the_readme_shows_its_answer(bundle: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```json\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert shown is not None
    expected = json.loads(shown[1])
    request = {**json.loads(EXAMPLE), "k": 2, "fields": ["title"]}
    assert EXAMPLE in readme
    with SearchEngine.open(Bundle.open(bundle), Settings(deadline_ms=60_000)) as engine:
        found = engine.search(SearchRequest(**request)).model_dump(mode="json")
    assert set(found.pop("timings_ms")) == set(expected.pop("timings_ms"))
    agree(found, expected, 1e-4)
