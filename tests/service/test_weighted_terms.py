"""Further texts of a query, and their weights. tests/backends/test_random_requests.py compares their scores."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import QueryTerm, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from tests.support.tiny import tiny_documents


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
