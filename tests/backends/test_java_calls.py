"""How often a search crosses into Java."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.sparse import index as index_module
from lightretriever.artifacts.sparse import jvm, vocabulary
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service.schemas import QueryTerm, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import make_tiny_bundle


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the Java methods that are called in the block."""
    called: list[str] = []
    names = {
        id(getattr(jvm.java_class(f"lightretriever.{owner}"), name)): name
        for owner, name in (
            ("ImpactSearch", "search"),
            ("ImpactSearch", "scores"),
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
@pytest.mark.parametrize("kind", ["tokens", "words", "both"])
def test_a_search_asks_lucene_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: VocabularyKind, dense: bool
) -> None:
    """Beside that, it splits the query into words, scores what only the dense leg found, and reads the page."""
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary=kind, dense=dense)
    request = SearchRequest(query="play music from the terminal", k=5)
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine:
        engine.search(request)
        with counted(monkeypatch) as called:
            assert len(engine.search(request).hits) == 5
    expected = ["search", "documents"] + ["words"] * (kind != "tokens") + ["scores"] * dense
    assert sorted(called) == sorted(expected)


def test_impacts_that_judge_a_match_are_scores_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_meaningful_bundle(tmp_path / "bundle")
    # Further terms are not judged; one of almost no weight changes nothing else.
    judged = SearchRequest(query="harvest honey in summer, adjust the brakes of a bicycle", k=5, candidates=5)
    plain = judged.model_copy(update={"terms": [QueryTerm(text="bicycle", weight=1e-9)]})
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine, counted(monkeypatch) as called:
        found = engine.search(judged)
        assert sorted(called) == ["documents", "impacts", "search", "words"]
        called.clear()
        other = engine.search(plain)
        assert sorted(called) == ["documents", "scores", "search", "words"]
    assert (found.matched, other.matched) == ("strong", None)
    assert [(hit.id, hit.score, hit.sparse) for hit in found.hits] == [
        (hit.id, hit.score, hit.sparse) for hit in other.hits
    ]
