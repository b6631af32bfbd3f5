"""How often a search crosses into Java."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.sparse import index as index_module
from lightretriever.artifacts.sparse import jvm, vocabulary
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.tiny import make_tiny_bundle


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the Java methods that are called in the block."""
    called: list[str] = []
    names = {
        id(getattr(jvm.java_class(f"lightretriever.{owner}"), name)): name
        for owner, name in (
            ("ImpactSearch", "search"),
            ("ImpactSearch", "find"),
            ("ImpactSearch", "impacts"),
            ("OpenIndex", "documents"),
            ("WordAnalyzer", "words"),
        )
    }

    def call(function: Any, *arguments: Any) -> Any:
        called.append(names.get(id(function), str(function)))
        return jvm.java_call(function, *arguments)

    with monkeypatch.context() as patched:
        for module in (index_module, vocabulary):
            patched.setattr(module, "java_call", call)
        yield called


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "words"])
def test_a_search_asks_lucene_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: VocabularyKind, dense: bool
) -> None:
    """Words are split and the candidates' impacts read on the way of a search of both legs; and it reads the page."""
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary=kind, dense=dense)
    request = SearchRequest(query="play music from the terminal", k=5)
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine:
        engine.search(request)
        with counted(monkeypatch) as called:
            assert len(engine.search(request).hits) == 5
    expected = ["find" if dense else "search", "documents"]
    if kind == "words" and not dense:
        expected.append("words")
    assert sorted(called) == sorted(expected)
