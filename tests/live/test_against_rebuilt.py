"""What is written beside a bundle is searched as if a bundle had been built of all: random sequences of changes."""

from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.live.mirror import Mirror
from tests.support.asking import agree, without_times
from tests.support.tiny import make_tiny_bundle
from tests.support.written import changeable

_CODES = 0.05  # what 8-bit codes of other ranges, beyond which values are cut, may make of a cosine
_UNSTEADY = ("offset", "group_by")  # where one change of places brings others
FIELDS: dict[str, Any] = {"year": "number", "title": "keyword"}
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1)
BUNDLES: dict[str, dict[str, Any]] = {
    "words": {"vocabulary": "words"},
    "tokens": {"vocabulary": "tokens", "idf": True},
    "sparse": {"vocabulary": "words", "dense": False},
    "refined": {"vocabulary": "words", "layout": "codes", "documents": 800},
}
QUERIES = ("zebra music", "search engine library", "play chess from the terminal", "xylophone")
REQUESTS: tuple[dict[str, Any], ...] = (
    {"k": 10, "explain": True, "snippets": {}},
    {"k": 50, "mode": "sparse"},
    {"k": 50, "mode": "dense"},
    {"k": 20, "filter": {"field": "year", "gte": 2005}, "facets": ["title"]},
    {"k": 20, "filter": {"not": {"field": "title", "exists": True}}},
    {"k": 10, "sort": {"field": "year"}},
    {"k": 10, "group_by": "year"},
    {"k": 10, "offset": 10, "fusion": {"method": "rrf"}},
)


@pytest.fixture(scope="module", params=BUNDLES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("rebuilt") / request.param
    return make_tiny_bundle(path, fields=FIELDS, **({"documents": 60} | BUNDLES[request.param]))


def answers(engine: SearchEngine, asked: dict[str, Any], query: str) -> dict[str, Any]:
    return without_times(engine.search(SearchRequest(query=query, candidates=1000, **asked)).model_dump())


def change(engine: SearchEngine, mirror: Mirror, changes: int, groups: int) -> None:
    """Make random changes, some together, with searches between them."""
    while changes > 0:
        group = [mirror.change() for _ in range(min(changes, int(mirror.random.integers(1, groups + 1))))]
        results = changeable(engine).write(group, perf_counter() + 60, wait=False)
        assert not [one for one in results if isinstance(one, LightRetrieverError)]
        changes -= len(group)
        engine.search(SearchRequest.model_validate(REQUESTS[3] | {"query": "zebra"}))


def compare(bundle: Bundle, folder: Path, seed: int, changes: int, groups: int = 5) -> None:
    """Make random changes, half of them after a new start, and compare each kind of answer with a rebuilt bundle's."""
    mirror, settings = Mirror(bundle, seed), SETTINGS.model_copy(update={"live": folder / "live"})
    with SearchEngine.open(bundle, settings) as engine:
        change(engine, mirror, changes // 2, groups)
    with SearchEngine.open(bundle, settings) as engine:
        change(engine, mirror, changes - changes // 2, groups)
        rebuilt = mirror.rebuilt(folder / f"rebuilt-{seed}")
        lossy = bundle.manifest.dense is not None and "SQ8" in bundle.manifest.dense.factory
        own = patch.object(Bundle, "background", return_value=bundle.background())  # drawn when a bundle is built
        with own, SearchEngine.open(rebuilt, SETTINGS) as other:
            for asked in REQUESTS:
                if bundle.manifest.dense is None and asked.get("mode") == "dense":
                    continue
                query = QUERIES[int(mirror.random.integers(len(QUERIES)))]
                one, two = (answers(each, asked, query) for each in (engine, other))
                if not lossy:
                    for answer in (one, two):
                        answer.pop("matched", None)  # its thresholds are measured when a bundle is built
                        for hit in answer["hits"]:
                            hit.pop("matched", None)
                    agree(one, two, 2e-6)
                else:  # the codes have other ranges, so that neighbours may change places
                    hits = [{hit["id"]: hit for hit in answer["hits"]} for answer in (one, two)]
                    common = hits[0].keys() & hits[1].keys()
                    if asked.keys().isdisjoint(_UNSTEADY):
                        assert len(common) >= 0.7 * len(hits[0]), asked
                    for name in common:
                        dense, sparse = ([hit[name].get(leg) for hit in hits] for leg in ("dense", "sparse"))
                        if all(dense):
                            assert abs(dense[0]["score"] - dense[1]["score"]) < _CODES, asked
                        if all(sparse):
                            assert sparse[0]["score"] == sparse[1]["score"], asked
            for document_id in list(mirror.rows)[-5:]:
                assert engine.terms(document_id) == other.terms(document_id)
            ids = {hit.id for hit in engine.search(SearchRequest(query="zebra music", k=1000, candidates=1000)).hits}
            assert ids <= mirror.rows.keys()


@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_of_changes_gives_what_a_rebuilt_bundle_gives(bundle: Bundle, tmp_path: Path, seed: int) -> None:
    compare(bundle, tmp_path, seed, changes=[1, 7, 40, 120][seed])


@pytest.mark.slow
def test_many_sequences_give_what_rebuilt_bundles_give(bundle: Bundle, tmp_path: Path) -> None:
    for seed in range(100, 200):  # of each of the five bundles
        folder = tmp_path / str(seed)
        folder.mkdir()
        compare(bundle, folder, seed, changes=int(np.random.default_rng(seed).integers(1, 60)))
