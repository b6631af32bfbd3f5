"""When Faiss searches in another thread, and that Lucene ends by itself."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse import jvm
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service import cgroup
from lightretriever.service.backends.local import HAND_OVER_BYTES, LocalBackends, hands_over, open_local
from lightretriever.service.execution.executor import Executor
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.lucene.support import search
from tests.service.live import warm
from tests.support.tiny import BundleOf

SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=3)


@pytest.mark.parametrize(
    ("search_bytes", "running", "free", "expected"),
    [
        (HAND_OVER_BYTES, 1, 2, True),
        (HAND_OVER_BYTES - 1, 1, 2, False),  # it ends before another thread takes it over
        (HAND_OVER_BYTES, 2, 2, False),  # every processor has a search
        (HAND_OVER_BYTES, 1, 1, False),  # there is no other processor
        (HAND_OVER_BYTES, 3, 4, True),
        (0, 1, 64, False),
    ],
)
def test_the_rule(search_bytes: int, running: int, free: int, expected: bool) -> None:
    assert hands_over(search_bytes, running, free) is expected


@pytest.mark.parametrize(
    ("own", "files", "most", "mib"),
    [
        ("0::/", {"cpu.max": "200000 100000", "memory.max": "max"}, 2, None),
        ("0::/", {"cpu.max": "150000 100000", "memory.max": "104857600"}, 2, 100),
        ("0::/", {"cpu.max": "max 100000", "memory.max": ""}, None, None),
        (
            "0::/a.slice/b.service",
            {"a.slice/memory.max": "104857600", "a.slice/b.service/memory.max": "max"},
            None,
            100,
        ),
        ("0::/a.slice/b.service", {"a.slice/cpu.max": "50000 100000", "memory.max": "209715200"}, 1, 200),
        ("0::/kubepods/pod/none", {"memory.max": "104857600"}, None, 100),
        ("0::/../../x", {"memory.max": "104857600"}, None, 100),
        ("nonsense", {}, None, None),
    ],
)
def test_what_nested_cgroups_grant_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], most: int | None, mib: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(content + "\n")
    (tmp_path / "own").write_text(own)
    found = []
    for root, name in (("nowhere", "none"), ("cgroup", "own")):
        monkeypatch.setattr(cgroup, "_ROOT", tmp_path / root)
        monkeypatch.setattr(cgroup, "_CGROUP", tmp_path / name)
        found += [cgroup.processors(), cgroup.memory_bytes()]
    assert found[2] <= most if most else found[2] == found[0]
    assert found[3] == (found[1] if mib is None else mib << 20)


def test_a_search_that_is_late_ends_by_itself(tiny_bundle: Bundle) -> None:
    with tiny_bundle.sparse() as index:
        terms, weights = index.terms(0)[0][:3], np.ones(3, np.float32)
        assert search(index, terms, weights, 10)[0].size
        with pytest.raises(TimeoutError):
            search(index, terms, weights, 10, seconds=0.0)
        assert search(index, terms, weights, 10, seconds=60.0)[0].size


def test_both_legs_are_late_when_there_is_no_time(tiny_bundle: Bundle) -> None:
    executor = Executor()
    backends: LocalBackends = open_local(tiny_bundle, Settings(), executor)
    tokenizer = tiny_bundle.tokenizer()
    encoder = QueryEncoder(tokenizer, {"default": tiny_bundle.table("default")}, tiny_bundle.vocabulary(tokenizer))
    query = encoder.encode("play music", "default", StageClock())
    outcomes = backends.search(query, ["dense", "sparse"], 10, None, perf_counter() - 1).outcomes
    assert {name: outcome.reason for name, outcome in outcomes.items()} == {"dense": "late", "sparse": "late"}
    outcomes = backends.search(query, ["dense", "sparse"], 10, None, perf_counter() + 60).outcomes
    assert {outcome.reason for outcome in outcomes.values()} == {None}
    backends.close()
    executor.close()


@pytest.mark.parametrize(
    ("kind", "dense", "crossings"), [("words", True, 2), ("tokens", True, 2), ("words", False, 3), ("tokens", False, 2)]
)
def test_a_search_crosses_into_java_for_its_hits_and_for_the_documents(
    bundle_of: BundleOf, kind: VocabularyKind, dense: bool, crossings: int
) -> None:
    """Words are split, and the candidates' impacts read, on the way of a search of both legs."""
    calls = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is jvm.java_call.__code__

    with SearchEngine.open(bundle_of(kind, dense), SETTINGS) as engine:
        sys.setprofile(look)
        try:
            engine.answer(SearchRequest(query="play music from the terminal"))
        finally:
            sys.setprofile(None)
    assert calls == crossings


@pytest.mark.usefixtures("handed_over")
def test_the_legs_are_asked_at_the_same_time(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    methods: dict[LegName, str] = {"dense": "search", "sparse": "find"}
    for name, method in methods.items():
        leg = getattr(engine.parts.backends, name)
        real = getattr(leg, method)

        def met(*arguments: Any, real: Callable[..., Any] = real) -> Any:
            both.wait(60)  # neither goes on before the other one has begun
            return real(*arguments)

        monkeypatch.setattr(leg, method, met)
    assert engine.search(SearchRequest(query="play music")).degraded == []


@pytest.fixture(scope="module")
def engine(bundle_of: BundleOf) -> Iterator[SearchEngine]:
    with warm(bundle_of("words"), SETTINGS) as engine:
        yield engine
