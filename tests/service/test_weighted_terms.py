"""Further texts of a query count as often as their weight says, in both legs, below 0 too: held against brute force."""

from collections.abc import Callable

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.errors import NoTokensError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Mode, QueryTerm, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.service.conftest import SETTINGS
from tests.service.reference import Corpus, Scores
from tests.support.tiny import make_tiny_bundle, tiny_documents

WORDS = ["play", "music", "the terminal", "search", "chess games", "日本語", "a"]
TERMS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.floats(-3, 3, width=16).filter(lambda weight: abs(weight) > 0.1)),
    min_size=1,
    max_size=4,
)


def factors(corpus: Corpus, query: str, terms: list[tuple[str, float]]) -> Scores:
    """How often each token of the vocabulary counts, (V,)."""
    counted = np.bincount(corpus.tokenizer.query_ids(query), minlength=corpus.tokenizer.vocab_size).astype(float)
    for text, weight in terms:
        np.add.at(counted, corpus.tokenizer.query_ids(text, appended=True), weight)
    return counted


def dense_scores(corpus: Corpus, counted: Scores) -> Scores:
    vector = counted @ corpus.tables["default"].astype(np.float64)
    return np.asarray(corpus.dense.astype(np.float64) @ (vector / np.linalg.norm(vector)))


def search(mode: Mode, query: str, terms: list[tuple[str, float]], k: int) -> SearchRequest:
    asked = [QueryTerm(text=text, weight=weight) for text, weight in terms]
    return SearchRequest(query=query, terms=asked, mode=mode, k=k, candidates=200, explain=True)


@settings(max_examples=20)
@given(query=st.sampled_from(WORDS), terms=TERMS)
def test_dense_scores_are_those_of_brute_force(
    engine: SearchEngine, corpus: Corpus, query: str, terms: list[tuple[str, float]]
) -> None:
    counted = factors(corpus, query, terms)
    assume(np.linalg.norm(counted @ corpus.tables["default"]) > 1e-3)
    expected = dense_scores(corpus, counted)
    hits = engine.search(search("dense", query, terms, 120)).hits
    found = {hit.id: hit.score for hit in hits}
    assert found == pytest.approx(
        {document.id: expected[ordinal] for ordinal, document in enumerate(corpus.documents)}, abs=1e-4
    )
    for hit in hits:
        assert hit.explanation is not None
        assert sum(word.dense or 0.0 for word in hit.explanation.words) == pytest.approx(hit.score, abs=1e-4)


@pytest.mark.parametrize("idf", [False, True])
def test_sparse_scores_are_those_of_brute_force(tmp_path_factory: pytest.TempPathFactory, idf: bool) -> None:
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("bundle") / "bundle", idf=idf)
    corpus = Corpus(bundle)
    weights = np.ones(corpus.tokenizer.vocab_size) if corpus.idf is None else corpus.idf.astype(np.float64)

    @settings(max_examples=20)
    @given(query=st.sampled_from(WORDS), terms=TERMS)
    def holds(query: str, terms: list[tuple[str, float]]) -> None:
        counted = factors(corpus, query, terms) * weights
        if not counted.any():
            with pytest.raises(NoTokensError, match="take away every token"):
                engine.search(search("sparse", query, terms, 120))
            return
        expected = corpus.impacts @ counted
        hits = engine.search(search("sparse", query, terms, 120)).hits
        clear = {document.id for document, score in zip(corpus.documents, expected, strict=True) if score > 1e-3}
        found = {hit.id: hit.score for hit in hits}
        assert clear <= set(found)
        for ordinal, document in enumerate(corpus.documents):
            if document.id in found:
                assert found[document.id] == pytest.approx(expected[ordinal], rel=1e-5, abs=1e-2)
        for hit in hits:
            assert hit.score > 0
            assert hit.explanation is not None
            shares = [word.sparse or 0.0 for word in hit.explanation.words]
            rounding = 1e-6 * sum(map(abs, shares))  # shares of both signs may nearly cancel
            assert sum(shares) == pytest.approx(hit.score, rel=1e-4, abs=rounding)

    with SearchEngine.open(bundle, SETTINGS) as engine:
        holds()


def of_bytes(texts: list[str]) -> Tokenizer:
    """As Qwen and GPT-2: a space is part of the token behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    return tokenizer


def of_pieces(texts: list[str]) -> Tokenizer:
    """As Llama-2 and Mistral: a space is put before each text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


@pytest.mark.parametrize("make", [of_bytes, of_pieces])
def test_a_term_has_the_tokens_that_it_has_within_a_text(make: Callable[[list[str]], Tokenizer]) -> None:
    made = make([document.full_text.lower() for document in tiny_documents()])
    tokenizer = TextTokenizer.from_bytes(made.to_str().encode(), name="made here")
    encoder = QueryEncoder(tokenizer, {})
    for query, text in (("play", "music"), ("music files", " from the terminal "), ("a", "a")):
        joined = encoder.encode(f"{query} {text.strip()}", "default", StageClock(), dense=False)
        apart = encoder.encode(query, "default", StageClock(), dense=False, extra_terms=[(text, 1.0)])
        assert apart.terms == joined.terms
        assert apart.counts.tolist() == joined.counts.tolist()
        assert apart.weights.tolist() == joined.weights.tolist()


def test_a_weight_of_one_is_as_if_the_words_stood_in_the_query(engine: SearchEngine) -> None:
    joined = engine.search(SearchRequest(query="play music in the terminal")).hits
    apart = engine.search(SearchRequest(query="play music", terms=[QueryTerm(text="in the terminal", weight=1)])).hits
    assert [hit.id for hit in apart] == [hit.id for hit in joined]
    assert [hit.score for hit in apart] == pytest.approx([hit.score for hit in joined], abs=1e-5)


def test_documents_with_unwanted_words_go_down(client: TestClient) -> None:
    def ranks(**more: object) -> list[str]:
        asked = {"query": "music", "mode": "sparse", "k": 50, **more}
        return [hit["id"] for hit in client.post("/search", json=asked).json()["hits"]]

    plain, without = ranks(), ranks(terms=[{"text": "terminal player", "weight": -5}])
    assert "repeat" in plain[:3]
    assert "repeat" not in without
    assert set(without) < set(plain)


def test_in_a_hybrid_search_both_legs_have_them(client: TestClient) -> None:
    asked = {"query": "music", "terms": [{"text": "terminal", "weight": -0.5}, {"text": "chess", "weight": 2.5}]}
    answer = client.post("/search", json={**asked, "explain": True, "k": 5}).json()
    assert not answer["degraded"]
    for hit in answer["hits"]:
        words = hit["explanation"]["words"]
        assert [(word["word"], word["count"]) for word in words] == [("music", 1), ("terminal", 1), ("chess", 1)]
        for word, weight in zip(words, (1.0, -0.5, 2.5), strict=True):
            assert {part["weight"] for part in word["tokens"] + word["terms"]} == {weight}
        assert sum(word["dense"] for word in words) == pytest.approx(hit["dense"]["score"], abs=1e-4)
        assert sum(word["sparse"] for word in words) == pytest.approx(hit["sparse"]["score"], rel=1e-4, abs=1e-3)


def test_a_token_that_is_cancelled_counts_nothing(engine: SearchEngine) -> None:
    asked = SearchRequest(query="play music", terms=[QueryTerm(text="music", weight=-1)], explain=True)
    for hit in engine.search(asked).hits:
        assert hit.explanation is not None
        play, music = hit.explanation.words
        assert (music.word, music.count, music.tokens, music.terms) == ("music", 2, [], [])
        assert (music.dense, music.sparse) == (0.0, 0.0)
        assert play.tokens
