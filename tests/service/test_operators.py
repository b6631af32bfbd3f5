"""On every backend: a "phrase" in a query, which documents must have, -word, which they must not have, and a name of a
document, its id, title or the title's head, which finds it first."""

import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.evaluation.searching import QueryVectors
from lightretriever.artifacts.live.compact import compact
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.service.commands.evaluation import EngineSearcher
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Mode, SearchRequest, SearchResponse
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.request import literal, read_operators
from lightretriever.service.settings import Settings
from tests.support.cluster import connected, remove_indexes
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.wordings import raises
from tests.support.written import changeable, impacts_of

WRITTEN = [
    TinyDocument("one", "Emacs: an extensible editor", "It edits photos of galleries, and is no vim.", 2001),
    TinyDocument("two", "Vim – the editor", "A text-editor for letters.", 2002),
    TinyDocument("three", "Nano", "The small editor of a text; no gallery.", 2003),
    TinyDocument("four", "Joe (Own Editor)", "State of the art: text editors.", 2004),
    TinyDocument("five", "Photo library", "A state and art. Written in C++ libraries.", 2005),
    TinyDocument("six", "Libraries for C", "東日本語の本 in C libraries.", 2006),
    TinyDocument("seven", "ends in state", "of the art begins. Thé État, wi-fi and LINUX 6.1 kernel, don't.", 2007),
    TinyDocument("thousand", "Words", " ".join(f"word{number}" for number in range(1000)), 2008),
    TinyDocument("image", "GNU  Image Manipulation Program", "It draws.", 2001),
    TinyDocument("small", "Ｐico - small", "It writes.", 2004),
    TinyDocument("vim", "Image library", "Nothing of it.", 2006),
    TinyDocument("1984", "1984", "A novel.", 2007),
    *(TinyDocument(f"part-{number}", "Shared page", "letters " * number, 2008) for number in range(1, 5)),
    *(TinyDocument(f"many-{number}", "Chess game", "Many have this title.", 2010) for number in range(11)),
]
OTHERS = [document for document in tiny_documents(60) if document.id not in ("music", "editor")]
OF_ALL = {document.id for document in (*WRITTEN, *OTHERS)}
SETTINGS = Settings(deadline_ms=60_000)


def write(engine: SearchEngine, *documents: TinyDocument) -> None:
    changes, random = list[Change](), np.random.default_rng(5)
    for one in documents:
        vector = random.standard_normal(16).astype(np.float32)
        fields = read_fields(one.id, {"title": one.title, "text": one.text, "year": one.year}, engine.bundle.manifest)
        changes.append(Change(one.id, fields, vector / np.linalg.norm(vector), impacts_of(engine, one.full_text)))
    changeable(engine).write(changes, perf_counter() + 60)


on_disk = pytest.mark.parametrize("engine", ["here", "live", "compacted"], indirect=True)


@pytest.fixture(scope="module", params=["here", "live", "compacted", "cluster"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """Search documents of a bundle that is served here, from a cluster, or with those of `WRITTEN` in a journal, which
    another bundle may have taken up."""
    place, settings, url, folder = request.param, SETTINGS, "", tmp_path_factory.mktemp("operators")
    name = f"{folder.name}-{os.getpid()}"
    documents = OTHERS if place in ("live", "compacted") else [*OTHERS, *WRITTEN]
    bundle = make_tiny_bundle(
        folder / "tiny", vocabulary="words", positions=True, documents=documents, fields={"year": "number"}
    )
    live = SETTINGS.model_copy(update={"live": folder / "live"})
    if place == "compacted":
        with SearchEngine.open(bundle, live) as before:
            write(before, *WRITTEN)
        bundle, _ = compact(bundle, folder / "live", folder / "new")
        assert verify_bundle(bundle.path) == []
    elif place == "cluster":
        url = request.getfixturevalue("opensearch")
        with connected(url) as cluster:
            push(bundle, cluster, name, replicas=0)
        settings = SETTINGS.model_copy(update={"opensearch_url": url, "opensearch_index": name})
    with SearchEngine.open(bundle, live if place == "live" else settings) as engine:
        if place == "live":
            write(engine, *WRITTEN)
        yield engine
    if place == "cluster":
        remove_indexes(url, name)


def ask(engine: SearchEngine, query: str, **fields: object) -> SearchResponse:
    asked = {"query": query, "k": 100, "candidates": 200, **fields}
    return engine.search(SearchRequest.model_validate(asked))


def search(engine: SearchEngine, query: str, **fields: object) -> set[str]:
    return {hit.id for hit in ask(engine, query, **fields).hits}


@pytest.mark.parametrize(
    ("query", "text", "excluded", "phrases"),
    [
        ("editor -vim", "editor", ["vim"], []),
        ("editor  -Vim -own-editor ", "editor", ["Vim", "own-editor"], []),
        ('"text editor" -vim', '"text editor"', ["vim"], ["text editor"]),
        ("viewer -qt", "viewer -qt", [], []),  # two letters, as in ls -la
        ("tar -xzf archive.tar", "tar -xzf archive.tar", [], []),  # something is behind it
        ("gcc -std=c99", "gcc -std=c99", [], []),
        ("gcc --verbose -pedantic", "gcc --verbose -pedantic", [], []),
        ("-exec", "-exec", [], []),  # nothing to look for
        ("-vim -emacs", "-vim -emacs", [], []),
        ("-photos text", "-photos text", [], []),
        ("text - vim text-vim", "text - vim text-vim", [], []),
        ('find "-exec"', 'find "-exec"', [], ["-exec"]),
        ('"a b" and "c"', '"a b" and "c"', [], ["a b", "c"]),
        ("“smart quotes” „lower“", "“smart quotes” „lower“", [], ["smart quotes", "lower"]),
        ('3.5" disk, 5.25" disk', '3.5" disk, 5.25" disk', [], []),
        ('text editor"', 'text editor"', [], []),
        ('"" text " " "', '"" text " " "', [], []),
        ('a "b"c "d" e', 'a "b"c "d" e', [], ["d"]),
        ('"a" "b" "a" -own -Own -own', '"a" "b" "a"', ["own", "Own"], ["a", "b"]),
        (f"editor{' -vim' * 8}", "editor", ["vim"], []),
        (f"editor{' -vim' * 9}", f"editor{' -vim' * 9}", [], []),
        ("rock 'n' roll, don't", "rock 'n' roll, don't", [], []),
    ],
)
def test_operators_are_read(query: str, text: str, excluded: list[str], phrases: list[str]) -> None:
    assert read_operators(query) == (text, excluded, phrases)
    assert read_operators(literal(query))[1:] == ([], [])
    if not excluded and not phrases:
        assert literal(query) == query


@pytest.mark.parametrize(
    ("query", "having"),
    [
        ('"text editor"', {"two", "four"}),  # with any sign between them, in any form
        ('"editor text"', set()),
        ('"TEXT Editors" photo', {"two", "four"}),
        ('"text editor" "state of the art"', {"four"}),
        ('"state of the art"', {"four", "seven"}),  # from the title to the text
        ('"state art"', set()),  # stop words have their places
        ('"state in an art"', {"four", "seven"}),
        ('"c++ library"', {"five"}),
        ('"c library"', {"six"}),
        ('"日本語"', {"six", "cjk"}),
        ('"wi fi"', {"seven"}),
        ('"linux 6.1 kernel"', {"seven"}),
        ('"état wi-fi"', {"seven"}),
        ('"don\u2019t"', {"seven"}),
        ('"state of the art" -state', set()),
        ('"text editor" -vim', {"four"}),
        (f'"{" ".join(f"word{number}" for number in range(1, 999))}"', {"thousand"}),
        (f'"{" ".join(f"word{number}" for number in (*range(500), 3))}"', set()),
    ],
)
def test_documents_have_the_phrases_of_a_query(engine: SearchEngine, query: str, having: set[str]) -> None:
    if engine.settings.backend == "opensearch":
        query = read_operators(query).text
        answer = ask(engine, query)
        assert set((answer.phrases or {}).values()) == {False}
        assert search(engine, query, mode="dense") == OF_ALL
        return
    assert search(engine, query, mode="dense") == having
    assert search(engine, query) == having
    assert search(engine, query, mode="sparse") == having & search(engine, query.replace('"', " "), mode="sparse")
    assert set((ask(engine, query).phrases or {}).values()) == {True}


def test_a_phrase_changes_no_score(engine: SearchEngine) -> None:
    query = 'text "text editor"'
    legs = {hit.id: (hit.dense, hit.sparse) for hit in ask(engine, literal(query), mode="sparse").hits}
    for hit in ask(engine, query, mode="sparse", explain=True).hits:
        sparse = legs[hit.id][1]
        assert sparse is not None
        assert hit.sparse is not None
        assert hit.sparse.score == sparse.score


@pytest.mark.parametrize("query", ['"to be or not to be" editor', '"the"', '"the" "of a"'])
def test_a_phrase_of_stop_words_is_not_required(engine: SearchEngine, query: str) -> None:
    answer = ask(engine, query, mode="dense")
    assert {hit.id for hit in answer.hits} == OF_ALL
    assert answer.phrases == dict.fromkeys(read_operators(query).phrases, False)


def test_a_bundle_without_positions_says_that_a_phrase_is_not_required(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary="words", documents=[*OTHERS, *WRITTEN])
    with SearchEngine.open(bundle, SETTINGS) as engine:
        answer = ask(engine, '"editor text"', mode="dense")
        assert answer.phrases == {"editor text": False}
        assert {hit.id for hit in answer.hits} == OF_ALL


@on_disk
def test_a_phrase_goes_with_filters_facets_groups_batches_and_snippets(engine: SearchEngine) -> None:
    after = {"field": "year", "gt": 2002}
    assert search(engine, '"text editor"', filter=after, k=1000, candidates=1000) == {"four"}
    assert search(engine, '"text editor"', group_by="title", sort={"field": "year", "order": "desc"}) == {"two", "four"}
    (hit,) = ask(engine, '"text editor"', filter=after, explain=True, snippets={}).hits
    assert hit.snippets is not None
    assert hit.snippets["text"].text[slice(*hit.snippets["text"].marks[-2])] == "text"
    assert hit.explanation is not None
    assert {word.word for word in hit.explanation.words} >= {"text", "editor"}
    asked = [SearchRequest(query='"text editor"'), SearchRequest(query="editor"), SearchRequest(like="two")]
    first, second, third = (SearchResponse.model_validate(answer()) for answer in engine.batch(asked))
    assert {hit.id for hit in first.hits} == {"two", "four"}
    assert len(second.hits) == len(third.hits) == 10
    assert (second.phrases, third.phrases) == (None, None)


@on_disk
def test_words_in_quotes_are_not_corrected(engine: SearchEngine) -> None:
    answer = ask(engine, '"text editor of" librarry', spelling="suggest")
    assert answer.did_you_mean == '"text editor of" library'
    assert ask(engine, 'librarry "editer"', spelling="suggest").did_you_mean == 'library "editer"'
    assert ask(engine, '"text editor" galery -vim', spelling="auto").searched == '"text editor" gallery -vim'


def test_a_changed_document_has_its_new_phrases(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary="words", positions=True, documents=[*OTHERS, *WRITTEN])
    with SearchEngine.open(bundle, SETTINGS.model_copy(update={"live": tmp_path / "live"})) as engine:
        write(engine, TinyDocument("two", "Vim", "An editor of texts.", 2002))
        assert search(engine, '"text editor"') == {"four"}
        assert search(engine, '"editor of text"') == {"two"}
        changeable(engine).write([Change("four")], perf_counter() + 60)
        assert search(engine, '"text editor"') == set()
    with SearchEngine.open(bundle, SETTINGS.model_copy(update={"live": tmp_path / "live"})) as engine:
        assert search(engine, '"editor of text"') == {"two"}
        assert search(engine, '"text editor"') == set()


@pytest.mark.parametrize(
    ("query", "without", "told"),
    [
        ("editor -vim", {"one", "two"}, ["vim"]),
        ("editor -Vim  -gallery", {"one", "two", "three"}, ["Vim", "gallery"]),  # galleries, too
        ("emacs -own-editor", {"four"}, ["own-editor"]),  # which has both
        ("editor -zebra -vim", {"one", "two"}, ["vim"]),  # no document has a zebra
        ("editor -zebra -own-zebra", set(), None),
        ("editor -日本語", set(), None),  # single signs are no words of theirs
    ],
)
def test_excluded_words_are_absent(engine: SearchEngine, query: str, without: set[str], told: list[str] | None) -> None:
    if engine.settings.backend == "opensearch" and read_operators(query).excluded:
        with raises(InvalidRequestError, naming="and no cluster"):
            search(engine, query)
        return
    answer = ask(engine, query, mode="dense")
    assert {hit.id for hit in answer.hits} == OF_ALL - without
    assert answer.excluded == told
    assert not without & {*search(engine, query), *search(engine, query, mode="sparse")}


@on_disk
def test_a_word_that_no_document_has_is_text(engine: SearchEngine) -> None:
    for query in ("tar -xzf", "tar -xzf -vim"):
        explanation = ask(engine, query, k=1, explain=True).hits[0].explanation
        assert explanation is not None
        assert "xzf" in {word.word for word in explanation.words}
        assert "vim" not in {word.word for word in explanation.words}


@on_disk
@pytest.mark.parametrize("query", ['the "text editor" of vim', "editor -vim", 'a " text', '"editor" - "vim"'])
def test_an_evaluation_takes_the_vectors_of_a_query_with_operators(engine: SearchEngine, query: str) -> None:
    """The given vector is that of the whole text, in which operators are signs as others."""
    task = engine.bundle.manifest.default_task
    given = engine.parts.encoder.encode(literal(query), task, StageClock())
    vectors = {query: QueryVectors(given.terms, given.weights, given.dense)}
    searchers = [EngineSearcher(engine), EngineSearcher(engine).with_vectors(vectors)]
    plain, taken = (one.search(query, task=task, mode="dense", k=10, candidates=50, fusion=None) for one in searchers)
    assert plain
    assert taken is not None
    assert [name for name, _ in taken] == [name for name, _ in plain]


def ids(engine: SearchEngine, query: str, **fields: object) -> list[str]:
    return [hit.id for hit in ask(engine, query, **fields).hits]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("gnu image\tMANIPULATION program ", ["image"]),
        ("emacs", ["one"]),
        ("Emacs: an extensible editor", ["one"]),
        ("VIM", ["vim", "two"]),  # the id comes before the head of a title
        ("pico", ["small"]),
        ("joe", ["four"]),
        ("image library", ["vim"]),
    ],
)
def test_a_name_finds_its_document_first(engine: SearchEngine, query: str, first: list[str], mode: Mode) -> None:
    assert ids(engine, query, mode=mode)[: len(first)] == first
    explained = engine.search(SearchRequest(query=query, mode=mode, explain=True, k=20)).hits
    notes = [hit.explanation.note for hit in explained if hit.explanation]
    note = "The query is the name of this document, its id or title, which puts it first."
    assert notes[: len(first)] == [note] * len(first)
    assert not any(notes[len(first) :])


def test_documents_of_one_name_are_ordered_by_score(engine: SearchEngine) -> None:
    hits = engine.search(SearchRequest(query="shared page", k=4)).hits
    assert {hit.id for hit in hits} == {f"part-{number}" for number in range(1, 5)}
    scores = [hit.score for hit in hits]
    assert scores == sorted({*scores}, reverse=True)


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
    assert "one" not in ids(engine, "emacs", filter={"field": "year", "gt": 2002})
    ordered = ids(engine, "emacs", sort={"field": "year", "order": "desc"})
    assert ordered[0] != "one"
