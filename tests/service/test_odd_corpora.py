"""Corpora and bundles that are odd: without a single word that the tokenizer knows, nested, with values that nobody
here writes. They start and answer, or say what is wrong. And what the vocabulary lacks is no evidence."""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from threading import Event
from typing import Final

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import query_vectors
from lightretriever.artifacts.documents.bounds import MAX_NESTING
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.artifacts.tokens.table import TokenTable
from lightretriever.service.collections.collections import Collections
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Mode, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import client_of, client_of_folder, warm
from tests.support.tampering import copy_of, resign, spoil_vector
from tests.support.tiny import TinyDocument, english_tokenizer, make_tiny_bundle
from tests.support.waiting import wait_until

SETTINGS: Final = Settings(deadline_ms=60_000, warm_up_queries=12, watch_s=0)
KHMER: Final = "ភាសាខ្មែរ"

CORPORA: Final[dict[str, Sequence[tuple[str, str]]]] = {
    "one document": [("music", "player")],
    "one unknown document": [("", KHMER)],
    "one unknown among others": [("music", "player"), ("", KHMER), ("a terminal", "music")],
    "all unknown": [(KHMER, f"{KHMER} {'漢' * number}") for number in range(1, 6)],
    "all equal": [("music", "player")] * 5,
    "empty titles": [("", f"player {number}") for number in range(5)],
    "empty texts": [(f"player {number}", "") for number in range(5)],
    "only emoji": [("", "🎉" * number) for number in range(1, 6)],
    "only punctuation": [("", "..."), ("!", "?"), ("", "“ ”")],
    "only stop words": [("the", "of and the"), ("a", "a a")],
    "one word very often": [("", "music " * 100_000)],
    "a very long word": [("", "x" * 200_000)],
    "control characters": [("", "\x00\x01\x02"), ("", "\u200b\u2060")],
    "unusual spaces": [("", "\u00a0\u2003music\u3000"), ("\u2028", "player\x85")],
    "combining marks alone": [("", "\u0301\u0302"), ("", "\ufe0f")],
    "spellings of special tokens": [("[UNK]", "[CLS] [SEP] [UNK] [PAD]")],
    "the syntax of Lucene": [("AND OR NOT", '*:* "" (( [1 TO 2} \\ ~ ^ :')],
    "markup": [("<b>music</b>", "</script><script>alert(1)</script>&lt;")],
    "right to left and private use": [("שלום", "مرحبا \u202e music"), ("\ue000", "\U0010fffd \U0001f9d1\u200d")],
}

WORDLESS: Final = ("only punctuation", "only stop words", "control characters", "combining marks alone")
"""Without a word, which no bundle of words is made of."""


def odd_bundle(path: Path, texts: Sequence[tuple[str, str]], vocabulary: VocabularyKind = "words") -> Bundle:
    """A bundle of these titles and texts under a small English WordPiece."""
    documents = [TinyDocument(f"d{number}", *pair, year=2000) for number, pair in enumerate(texts)]
    own = english_tokenizer()
    return make_tiny_bundle(path, documents=documents, own_tokenizer=own, vocabulary=vocabulary, tasks=("default",))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """A bundle of each corpus, by its name."""
    folder = tmp_path_factory.mktemp("odd")
    return {
        name: odd_bundle(folder / str(number), texts, "tokens" if name in WORDLESS else "words")
        for number, (name, texts) in enumerate(CORPORA.items())
    }


def test_they_start_and_answer(odd: dict[str, Bundle]) -> None:
    folders = {f"c{number}": bundle.path for number, bundle in enumerate(odd.values())}
    with Collections.open(folders, SETTINGS) as collections, TestClient(create_app(collections)) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        for collection, (name, texts) in zip(folders, CORPORA.items(), strict=True):
            below = f"/collections/{collection}"
            asked = {"query": "music player", "k": 100, "snippets": {}, "explain": True}
            answer = client.post(f"{below}/search", json=asked)
            assert answer.status_code == 200, (name, answer.text)
            found = {hit["id"]: hit["fields"] for hit in answer.json()["hits"]}
            told = [(found[f"d{place}"]["title"], found[f"d{place}"]["text"]) for place in range(len(texts))]
            assert told == texts, name
            for example in client.get(f"{below}/info").json().get("examples", []):
                assert client.post(f"{below}/search", json={"query": example}).status_code == 200, (name, example)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """Over three documents, of which the tokenizer knows no token in the second; the terms are tokens."""
    path = tmp_path_factory.mktemp("unknown") / "bundle"
    with warm(odd_bundle(path, CORPORA["one unknown among others"], "tokens"), SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def of_words(odd: dict[str, Bundle]) -> Iterator[SearchEngine]:
    """Over the same documents; the terms are words."""
    with warm(odd["one unknown among others"], SETTINGS) as engine:
        yield engine


@pytest.mark.parametrize(
    ("text", "by_tokens", "by_words"),
    [
        *(("music", True, True), (f"music {KHMER}", True, True), ("a", True, True)),
        *((KHMER, False, True), ("🎉", False, True), ("🎉 ...", False, True), ("...", False, False)),
        ("\u200b", False, False),
    ],
)
def test_a_text_without_terms_can_not_be_encoded(
    engine: SearchEngine, of_words: SearchEngine, text: str, by_tokens: bool, by_words: bool
) -> None:
    encoder = engine.parts.encoder
    assert encoder.can_encode(text, "default") == bool(encoder.tokenizer.query_ids(text)) == by_tokens
    assert of_words.parts.encoder.can_encode(text, "default") == by_words


def test_nor_can_one_without_direction(engine: SearchEngine) -> None:
    tokenizer = engine.parts.encoder.tokenizer
    rows = np.zeros((tokenizer.vocab_size, 4), np.float32)
    rows[tokenizer.query_ids("music")[0]] = 1
    encoder = QueryEncoder(tokenizer, {"default": TokenTable(rows, None)})
    assert encoder.can_encode("music player", "default")
    assert not encoder.can_encode("player", "default")
    (term,) = encoder.encode("player", "default", StageClock(), dense=False).terms
    assert term == str(tokenizer.query_ids("player")[0])
    vectors = query_vectors(TokenTable(rows, None), tokenizer.as_queries(["player", KHMER, "music"]))
    np.testing.assert_array_equal(vectors, np.full((1, 4), 0.5, np.float32))


def test_examples_are_short_titles_that_find_something_and_probes_of_usual_length(tmp_path: Path) -> None:
    some = [*[("", KHMER)] * 20, *((f"a music player {number}", "") for number in range(9)), *[("", "漢字")] * 20]
    with SearchEngine.open(odd_bundle(tmp_path / "some", some, "tokens"), SETTINGS) as engine:
        assert len(engine.examples) == 3
        assert all(example.startswith("a music player") for example in engine.examples)
    long = [(f"music {'9' * 100_000} a b", ""), ("", "The first sentence is no example. Nor is another.")]
    with SearchEngine.open(odd_bundle(tmp_path / "long", long, "tokens"), SETTINGS) as engine:
        assert engine.examples == []
        assert engine.parts.documents.probes(1) == [f"music {'9' * 194}"]
    titles = [(title, "A text about music.") for title in ("player", "music", " play  music ", "terminal", "x" * 61)]
    with SearchEngine.open(odd_bundle(tmp_path / "short", titles, "words"), SETTINGS) as engine:
        assert engine.examples[0] == "play music"  # several words first
        assert set(engine.examples[1:]) <= {"player", "music", "terminal"}


def test_a_service_of_short_queries_becomes_ready(tmp_path: Path) -> None:
    """Beginnings of documents, titles and the bundle's name may be longer than what it takes."""
    texts = [(title, f"{title} for a terminal") for title in ("music", "a music player", "play music", "player", KHMER)]
    odd = odd_bundle(tmp_path / "odd", texts)
    for longest in (1, 7, 12):
        ready, settings = Event(), SETTINGS.model_copy(update={"max_query_chars": longest})
        with client_of_folder(odd.path, settings, on_ready=ready.set) as client:
            assert ready.wait(60)
            for example in client.get("/info").json().get("examples", []):
                assert client.post("/search", json={"query": example}).status_code == 200, example


def test_spelling_leaves_what_it_does_not_know(of_words: SearchEngine, odd: dict[str, Bundle]) -> None:
    for query, searched in ((KHMER, None), ("🎉", None), (f"{KHMER} termnal music", f"{KHMER} terminal music")):
        assert of_words.search(SearchRequest(query=query, spelling="auto", prefix=True)).searched == searched
    with SearchEngine.open(odd["all unknown"], SETTINGS) as engine:
        assert engine.search(SearchRequest(query="musik", spelling="auto")).searched is None


def test_a_snippet_of_a_text_without_terms_is_its_beginning_or_what_is_spelt_alike(of_words: SearchEngine) -> None:
    for (query, marked), mode in product([("music", []), (f"music {KHMER}", [KHMER])], ("hybrid", "dense")):
        asked = {"query": query, "mode": mode, "snippets": {"fields": ["text"]}, "k": 3}
        hits = of_words.search(SearchRequest.model_validate(asked)).hits
        (snippet,) = (hit.snippets["text"] for hit in hits if hit.id == "d1" and hit.snippets is not None)
        assert snippet.text == KHMER
        assert [snippet.text[start:end] for start, end in snippet.marks] == marked


def test_a_deep_document_is_answered(tmp_path_factory: pytest.TempPathFactory) -> None:
    depth = MAX_NESTING - 1  # the document is an object around it
    nested = "[" * depth + "]" * depth
    deep = TinyDocument("deep", "music", "music player", 2001, more={"deep": json.loads(nested)})
    documents = [TinyDocument("flat", "music", "music", 2000), deep]
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("deep") / "bundle", documents=documents)
    with client_of(bundle, SETTINGS) as client:
        for answer in (
            client.post("/search", json={"query": "music player", "explain": True}),
            client.post("/search/batch", json={"searches": [{"query": "music"}] * 2}),
            client.get("/documents/deep"),
        ):
            assert answer.status_code == 200
            assert f'"deep":{nested}' in answer.text
        assert client.get("/documents/flat").json()["fields"]["text"] == "music"


UNKNOWN = ("🎉", "漢字", "ภาษาไทย", "ተማሪ", "x" * 150)


def test_unknown_words_change_no_hit(engine: SearchEngine) -> None:
    modes: tuple[Mode, ...] = ("hybrid", "dense", "sparse")
    for mode in modes:
        expected = engine.search(SearchRequest(query="player", mode=mode)).hits
        for unknown in (some for count in (1, 2, 5) for some in combinations(UNKNOWN, count)):
            query = " ".join(["player", *unknown])
            assert engine.search(SearchRequest(query=query, mode=mode)).hits == expected, query


def test_a_query_of_unknown_words_alone_has_no_tokens(engine: SearchEngine) -> None:
    with TestClient(create_app(engine)) as client:
        for text in (*UNKNOWN, " ".join(UNKNOWN)):
            for path, body in (("/search", {"query": text}), ("/encode", {"text": text})):
                answer = client.post(path, json=body)
                assert (answer.status_code, answer.json()["kind"]) == (422, "unsearchable_query")
                assert "no word and no known token" in answer.json()["detail"]
        told = client.post("/encode", json={"text": "player 🎉 player"}).json()["tokens"]
        assert [(token["token"], token["count"]) for token in told] == [("player", 2)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_vectors_and_tables_not_finite_fail_no_search(tiny_bundle: Bundle, tmp_path: Path, value: float) -> None:
    for name in ("vector", "table"):
        bundle = copy_of(tiny_bundle.path, tmp_path / name)
        if name == "vector":
            spoil_vector(bundle, value)
        else:
            file = tiny_bundle.manifest.tasks[tiny_bundle.manifest.default_task].file
            np.save(bundle / str(file), np.full_like(np.load(bundle / str(file)), 6e4 if value == 3e38 else value))
            resign(bundle)
        with client_of(Bundle.open(bundle), SETTINGS) as client:
            for body in ({"mode": "hybrid"}, {"mode": "dense"}, {"fusion": {"method": "rrf"}}, {"explain": True}):
                answer = client.post("/search", json={"query": "music player", "k": 10, **body}).json()
                scores = [hit["dense"]["score"] for hit in answer.get("hits", []) if hit["dense"]]
                assert all(np.isfinite(scores))
                assert "hits" in answer or (name, answer["kind"]) == ("table", "unsearchable_query"), answer
