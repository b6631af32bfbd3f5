"""A plain hybrid search asks Faiss and Lucene at the same time: counted on the demo bundle, built by default."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import pytest

from lightretriever.artifacts.bundle.archive import unpack
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.jvm import java_call
from lightretriever.service.schemas import LegName, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.serving.demo import ARCHIVE
from lightretriever.service.settings import Settings

pytestmark = pytest.mark.usefixtures("handed_over")
QUERIES = ["play music from the terminal", "pdf viewer", "edit photos", "a game of chess", "watch network traffic"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    folder: Path = tmp_path_factory.mktemp("demo") / "bundle"
    unpack(ARCHIVE, folder)
    with SearchEngine.open(Bundle.open(folder), Settings(deadline_ms=60_000)) as engine:
        yield engine


def test_every_plain_search_asks_faiss_and_lucene(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    threads: dict[str, set[str]] = {"java": set(), "faiss": set()}

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            threads[name].add(threading.current_thread().name.partition("_")[0])
            return real(*arguments, **named)

        return call

    monkeypatch.setattr("lightretriever.artifacts.sparse.index.java_call", counting("java", java_call))
    searched = faiss.IndexRefine
    monkeypatch.setattr(searched, "search", counting("faiss", searched.search))
    for query in QUERIES:
        before = calls.copy()
        answer = engine.search(SearchRequest(query=query))
        assert (len(answer.hits), answer.degraded) == (10, [])
        asked = calls - before
        assert asked["faiss"] >= 1
        assert asked["java"] >= 1
    assert threads == {"faiss": {"dense"}, "java": {"MainThread"}}


def test_the_legs_are_asked_at_the_same_time(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    methods: dict[LegName, str] = {"dense": "search", "sparse": "find"}
    for name, method in methods.items():
        leg = engine.parts.backends.legs[name]
        real = getattr(leg, method)

        def met(*arguments: Any, real: Callable[..., Any] = real) -> Any:
            both.wait(60)  # neither goes on before the other one has begun
            return real(*arguments)

        monkeypatch.setattr(leg, method, met)
    assert engine.search(SearchRequest(query="play music")).degraded == []
