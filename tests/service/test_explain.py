"""Explanations are exact: the shares of a query's words sum to a hit's scores, for any vocabulary, query, mode and
fusion, and match brute force."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.vocabulary import Vocabulary, VocabularyKind
from lightretriever.artifacts.tokens.table import HeadQueries, TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.errors import DeadlineError, UnsearchableError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import (
    Explanation,
    Hit,
    LegName,
    SearchRequest,
    TermShares,
    WordShares,
)
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.explain import explanations, query_words
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.service.test_fusion import of_bytes, of_pieces
from tests.support.legs import FailingLeg
from tests.support.tiny import BundleOf, make_tiny_bundle, tiny_batches, tiny_documents

KINDS: tuple[VocabularyKind, ...] = ("words", "tokens")
SAMPLE = (
    *("play", "music", "the", "terminal", "text", "documents", "document", "chess", "日本語", "検索エンジン", "Zażółć"),
    *("🎵", "and", "a", "MUSIC", "music", "wi-fi", "terminal-music", "C++", "c#", ".net", "play.", "ภาษาไทย"),
)
WORDS = st.lists(st.sampled_from(SAMPLE), min_size=1, max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def engines(
    bundle_of: BundleOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[VocabularyKind, SearchEngine]]:
    """Engines by vocabulary."""
    tokens = make_tiny_bundle(tmp_path_factory.mktemp("weighted") / "tokens", idf=True)
    bundles: dict[VocabularyKind, Bundle] = {"words": bundle_of("words"), "tokens": tokens}
    with ExitStack() as stack:
        yield {kind: stack.enter_context(SearchEngine.open(one, SETTINGS)) for kind, one in bundles.items()}


def explanation(hit: Hit) -> Explanation:
    assert hit.explanation is not None
    return hit.explanation


def terms_of(hit: Hit) -> list[TermShares]:
    return [term for word in explanation(hit).words for term in word.terms]


def by_word(hit: Hit) -> dict[str, WordShares]:
    return {word.word: word for word in explanation(hit).words}


def sums(hit: Hit) -> dict[str, float | None]:
    """What the words' shares of each leg sum to; None where the leg has none."""
    words = explanation(hit).words
    return {
        "dense": None if words[0].dense is None else sum(word.dense or 0.0 for word in words),
        "sparse": None if words[0].sparse is None else sum(word.sparse or 0.0 for word in words),
    }


def test_dense_shares_are_those_of_brute_force_and_an_explanation_changes_no_hit(engine: SearchEngine) -> None:
    """Sums and impacts: tests/backends/test_random_requests.py."""
    query = "play music music terminal"
    tokenizer, table = engine.bundle.tokenizer(), engine.bundle.table("default")
    ids = list(tokenizer.query_ids(query))
    length = np.linalg.norm(table.rows(np.array(ids)).sum(axis=0, dtype=np.float64))
    batches = tiny_batches(tiny_documents(), tokenizer)
    vectors = {name: vector for batch in batches for name, vector in zip(batch.ids, batch.dense, strict=True)}
    texts = {document.id: document.full_text for document in tiny_documents()}
    explained = engine.search(SearchRequest(query=query, explain=True)).hits
    plain = engine.search(SearchRequest(query=query)).hits
    assert [hit.model_copy(update={"explanation": None}) for hit in explained] == plain
    for hit in explained:
        assert list(by_word(hit)) == ["play", "music", "terminal"]
        for word, shares in by_word(hit).items():
            share = (table.rows(np.array(tokenizer.query_ids(word))) @ vectors[hit.id]).sum() / length
            assert shares.count == query.split().count(word)
            assert shares.dense == pytest.approx(shares.count * share, abs=1e-5)
            for token in shares.tokens:
                assert token.token == tokenizer.token(token.id)
                assert token.count == token.weight == ids.count(token.id)
        own = set(tokenizer.query_ids(texts[hit.id]))
        for term in terms_of(hit):
            assert term.text == tokenizer.token(int(term.term))
            assert term.added == (bool(term.impact) and int(term.term) not in own)


def found(engine: SearchEngine, **asked: object) -> Hit:
    """The best hit, explained."""
    return engine.search(SearchRequest.model_validate({"query": "", "k": 1, "explain": True, **asked})).hits[0]


def test_a_word_has_the_terms_that_begin_in_it_and_its_forms_share_them(
    engines: dict[VocabularyKind, SearchEngine],
) -> None:
    hit = found(engines["words"], query="The Wi-Fi, C++ and c# plays music. MUSIC!")
    terms = {word: [term.term for term in shares.terms] for word, shares in by_word(hit).items()}
    assert terms == {
        **{"The": [], "Wi-Fi": ["wi", "wifi", "fi"], "C++": ["c", "cplusplu"], "and": [], "c#": ["c", "csharp"]},
        **{"plays": ["plai"], "music": ["music"]},
        **{sign: [] for sign in ",.!"},
    }
    counts = {word: shares.count for word, shares in by_word(hit).items()}
    assert counts == {word: 2 if word == "music" else 1 for word in terms} | dict.fromkeys(",.!", 0)
    assert by_word(hit)["The"].sparse == 0.0
    assert by_word(hit)["The"].dense != 0.0
    hit = found(engines["words"], query="document music documents documents documents", mode="sparse")
    one, many = by_word(hit)["document"], by_word(hit)["documents"]
    assert one.sparse
    assert many.sparse == pytest.approx(3 * one.sparse)
    (term,) = one.terms
    assert (term.term, term.weight, term.count) == ("document", 4.0, 4)
    assert 4 * (term.impact or 0) == pytest.approx(one.sparse + (many.sparse or 0.0))
    hit = found(engines["words"], query="検索エンジン", mode="sparse")  # without spaces, signs are words
    assert hit.id == "cjk"
    assert not any(term.added for term in terms_of(hit))
    assert explanation(hit).coverage == 1.0
    assert "".join(word.word for word in explanation(hit).words) in "検索エンジン"


def test_coverage_counts_terms_in_the_text_in_whatever_form(engines: dict[VocabularyKind, SearchEngine]) -> None:
    hit = found(engines["words"], query="the playlists of librarian libraries", mode="sparse")
    assert hit.id == "music"
    assert explanation(hit).coverage == 0.6667  # without stop words; it has playlists and library
    hits = engines["words"].search(SearchRequest(query="music", k=100, explain=True)).hits
    assert {explanation(hit).coverage for hit in hits} == {0.0, 1.0}
    assert explanation(found(engines["words"], query="the and")).coverage is None


def test_a_query_that_a_model_read_has_shares_of_the_sparse_score(
    engines: dict[VocabularyKind, SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(3).standard_normal((2, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made = HeadQueries(["play music", "chess"], vectors, lowercase=True)
    for engine, query in product(engines.values(), ("play music", "chess")):
        monkeypatch.setattr(engine.parts.encoder, "heads", {"default": made})
        answer = engine.search(SearchRequest(query=query, explain=True))
        assert answer.head_query
        for hit in answer.hits:
            assert hit.dense is not None
            assert hit.sparse is not None
            assert sums(hit) == {"dense": None, "sparse": pytest.approx(hit.sparse.score, rel=1e-6)}
            assert explanation(hit).fusion.dense is not None
            assert [word.word for word in explanation(hit).words if word.count] == query.split()
            assert not any(word.tokens for word in explanation(hit).words)


TOKENIZERS = [make([document.full_text.lower() for document in tiny_documents()]) for make in (of_bytes, of_pieces)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (1, 1)])
@settings(max_examples=15)
@given(query=WORDS, added=st.lists(st.tuples(WORDS, st.sampled_from([0.25, 0.5, 1.0, 2.0])), max_size=3))
@example(query="music", added=[("日本語", 1.0)])
@example(query="🎵 漢字", added=[("🎵", 0.5)])
def test_the_words_have_every_part_of_the_query_once(
    kind: VocabularyKind, order: tuple[int, int], query: str, added: list[tuple[str, float]]
) -> None:
    """With a tokenizer for each leg, whatever it does with spaces."""
    dense, sparse = (TextTokenizer.from_bytes(TOKENIZERS[one].to_str().encode(), name="made here") for one in order)
    rows = np.random.default_rng(1).standard_normal((600, 8)).astype(np.float32)
    vocabulary = Vocabulary(None if kind == "words" else sparse, None if kind == "tokens" else "english")
    encoder = QueryEncoder(dense, {"default": TokenTable(rows, None)}, vocabulary)
    try:
        encoded = encoder.encode(query, "default", StageClock(), added=added)
    except UnsearchableError:
        reject()
    words = query_words(query, added, encoded, encoder)
    for parts, count in (
        ([part for word in words for part in word.terms], len(encoded.terms)),
        ([part for word in words for part in word.tokens], encoded.tokens.ids.size),
    ):
        shares = np.zeros(count)
        for place, share in parts:
            shares[place] += share
        assert shares == pytest.approx(np.ones(count), abs=1e-9)


def test_the_terms_of_a_document(client: TestClient, engines: dict[VocabularyKind, SearchEngine]) -> None:
    tokenizer = engines["tokens"].bundle.tokenizer()
    encoded = next(tiny_batches(tiny_documents(), tokenizer))
    for ordinal in (0, 1, 47):
        document, place = tiny_documents()[ordinal], slice(*encoded.indptr[ordinal : ordinal + 2])
        terms = client.get(f"/terms/{quote(document.id, safe='')}").json()["terms"]
        assert [(-term["impact"], term["term"]) for term in terms] == sorted(
            (-int(impact), str(term)) for term, impact in zip(encoded.terms[place], encoded.impacts[place], strict=True)
        )
        own = set(tokenizer.query_ids(document.full_text))
        for term in terms:
            assert term["in_text"] == (int(term["term"]) in own)
            assert term["text"] == tokenizer.token(int(term["term"]))
    with TestClient(create_app(engines["words"])) as of_words:
        terms = of_words.get("/terms/repeat").json()["terms"]
    assert {term["term"] for term in terms} == {"repeat", "music", "player", "termin"}
    assert all(term["text"] == term["term"] and term["in_text"] and term["impact"] > 0 for term in terms)


@pytest.mark.usefixtures("handed_over")
def test_a_leg_that_can_not_explain_costs_its_shares_alone(fresh_engine: SearchEngine) -> None:
    FailingLeg(fresh_engine, "dense", search=False)
    answer = fresh_engine.search(SearchRequest(query="music", explain=True))
    assert answer.degraded == []
    for hit in answer.hits:
        assert sums(hit)["dense"] is None
        assert hit.sparse is not None
        assert sums(hit)["sparse"] == pytest.approx(hit.sparse.score)
        assert explanation(hit).fusion.dense is not None


def test_what_may_be_explained_is_bounded_for_a_request_and_for_a_batch(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(SETTINGS), "max_explained", 30)
    asked: dict[str, object] = {"query": "music", "explain": True}
    with client_of(tiny_bundle, SETTINGS) as client:
        encoded = client.post("/encode", json={"text": "music"}).json()
        tokens = len(encoded["tokens"]) + len(encoded["terms"])
        most = 30 // tokens
        assert len(client.post("/search", json={**asked, "k": most}).json()["hits"]) == most
        assert client.post("/search", json={**asked, "k": most + 1, "explain": False}).status_code == 200
        refused = client.post("/search", json={**asked, "k": most + 1}).json()
        assert (refused["status"], refused["errors"][0]["field"]) == (422, "explain")
        assert f"{most + 1} hits times {tokens} different tokens and terms" in refused["detail"]
        assert "at most 30 are possible" in refused["detail"]
        assert client.get("/info").json()["limits"]["max_explained"] == 30
        # Three searches of a batch have 10 each, whatever those without explanations ask for.
        plain = {"query": "music", "k": 50}
        few, many = ({**asked, "k": count} for count in (10 // tokens, 10 // tokens + 1))
        assert client.post("/search/batch", json={"searches": [few, plain, few, few]}).status_code == 200
        refused = client.post("/search/batch", json={"searches": [few, plain, few, many]}).json()
        assert (refused["status"], refused["errors"][0]["field"]) == (422, "searches.3.explain")


def test_explaining_ends_at_the_deadline(engine: SearchEngine) -> None:
    looked = iter([True, True, False])

    def require_time(task: str) -> None:
        if not next(looked):
            raise DeadlineError("late")

    encoder = engine.parts.encoder
    query = encoder.encode("music", "default", StageClock())
    words = query_words("music", [], query, encoder)
    legs: list[LegName] = ["dense", "sparse"]
    with pytest.raises(DeadlineError):
        explanations(query, words, encoder, np.zeros((2, 5)), legs, {}, [""] * 5, require_time)
    assert next(looked, None) is None
