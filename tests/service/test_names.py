"""A query that is a name of a document, its id, title or the title's head, finds it first; on every backend."""

import os
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.service.schemas import Mode, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.cluster import connected, remove_indexes
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.written import changeable, impacts_of

NAMED = [
    TinyDocument("one", "GNU  Image Manipulation Program", "It edits photos of galleries.", 2001),
    TinyDocument("two", "Emacs: an extensible editor", "It edits text, and is no vim.", 2002),
    TinyDocument("three", "Vim – the editor", "Text is edited by letters.", 2003),
    TinyDocument("four", "Ｎano - small", "An editor of text, no gallery.", 2004),
    TinyDocument("five", "Joe (Own Editor)", "Text, and the photo of emacs.", 2005),
    TinyDocument("vim", "Photo library", "Nothing of it.", 2006),
    TinyDocument("1984", "1984", "A novel.", 2007),
    *(TinyDocument(f"part-{number}", "Shared page", "letters " * number, 2008) for number in range(1, 5)),
    *(TinyDocument(f"many-{number}", "Chess game", "Many have this title.", 2010) for number in range(11)),
]
OTHERS = [document for document in tiny_documents(60) if "music" not in document.id]
PLACES = ("here", "live", "cluster")


@pytest.fixture(scope="module", params=PLACES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    folder, settings = tmp_path_factory.mktemp("names"), Settings(deadline_ms=60_000)
    url, name = "", f"names-{os.getpid()}"
    documents = OTHERS if request.param == "live" else [*OTHERS, *NAMED]
    bundle = make_tiny_bundle(folder / "tiny", vocabulary="words", documents=documents, fields={"year": "number"})
    if request.param == "cluster":
        url = request.getfixturevalue("opensearch")
        with connected(url) as cluster:
            push(bundle, cluster, name, replicas=0, skipped=int, written=int)
        settings = Settings(deadline_ms=60_000, opensearch_url=url, opensearch_index=name)
    if request.param == "live":
        settings = Settings(deadline_ms=60_000, live=folder / "live")
    with SearchEngine.open(bundle, settings) as engine:
        if request.param == "live":
            random, changes = np.random.default_rng(5), []
            for one in NAMED:
                fields = {"title": one.title, "text": one.text, "year": one.year}
                vector = random.standard_normal(16).astype(np.float32)
                impacts = impacts_of(engine, one.full_text)
                document = read_fields(one.id, fields, bundle.manifest)
                changes.append(Change(one.id, document, vector / np.linalg.norm(vector), impacts))
            changeable(engine).write(changes, perf_counter() + 60)
        yield engine
    if request.param == "cluster":
        remove_indexes(url, name)


def search(engine: SearchEngine, query: str, k: int = 100, **fields: object) -> list[str]:
    request = SearchRequest.model_validate({"query": query, "k": k, "candidates": 200, **fields})
    return [hit.id for hit in engine.search(request).hits]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("gnu image\tMANIPULATION program ", ["one"]),
        ("emacs", ["two"]),
        ("Emacs: an extensible editor", ["two"]),
        ("VIM", ["vim", "three"]),  # the id comes before the head of a title
        ("nano", ["four"]),
        ("joe", ["five"]),
        ("photo library", ["vim"]),
    ],
)
def test_a_name_finds_its_document_first(engine: SearchEngine, query: str, first: list[str], mode: Mode) -> None:
    assert search(engine, query, mode=mode)[: len(first)] == first
    explained = engine.search(SearchRequest(query=query, mode=mode, explain=True, k=20)).hits
    notes = [hit.explanation.note for hit in explained if hit.explanation]
    note = "The query is the name of this document, its id or title, which puts it first."
    assert notes[: len(first)] == [note] * len(first)
    assert not any(notes[len(first) :])


def test_documents_of_one_name_are_ordered_by_score(engine: SearchEngine) -> None:
    hits = engine.search(SearchRequest(query="shared page", k=4)).hits
    assert {hit.id for hit in hits} == {f"part-{number}" for number in range(1, 5)}
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4


def test_a_name_changes_no_score(engine: SearchEngine) -> None:
    alone = {hit.id: hit.dense for hit in engine.search(SearchRequest(query="emacs", k=100, mode="dense")).hits}
    for explain in (False, True):
        for hit in engine.search(SearchRequest(query="emacs", k=30, explain=explain)).hits:
            one = alone[hit.id]
            assert hit.dense is not None
            assert one is not None
            assert hit.dense.score == pytest.approx(one.score, abs=1e-6)


def test_what_is_no_name_puts_nothing_first(engine: SearchEngine) -> None:
    for query in ("chess game", "an extensible editor", "1984", "program"):
        answer = engine.search(SearchRequest(query=query, explain=True, k=20))
        assert {hit.explanation.note for hit in answer.hits if hit.explanation} == {None}
    assert "two" not in search(engine, "emacs", filter={"field": "year", "gt": 2002})
    ordered = search(engine, "emacs", sort={"field": "year", "order": "desc"})
    assert ordered[0] != "two"
