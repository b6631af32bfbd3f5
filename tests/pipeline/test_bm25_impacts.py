from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder, add_impacts, bm25_impacts
from lightretriever.artifacts.sparse.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.tokens.idf import count_tokens
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.support.tiny import train_tokenizer

V = 60
IdLists = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=30), min_size=1, max_size=12)


def arrays(texts: list[list[int]]) -> list[npt.NDArray[np.int32]]:
    return [np.array(ids, dtype=np.int32) for ids in texts]


def random_texts(count: int, seed: int = 3) -> list[npt.NDArray[np.int32]]:
    """Lengths below 40, which Lucene stores exactly; frequent tokens come several times."""
    random = np.random.default_rng(seed)
    return [
        np.minimum(random.geometric(0.08, size=random.integers(5, 39)), V - 1).astype(np.int32) for _ in range(count)
    ]


def test_a_document_by_hand() -> None:
    """Two documents of 3 and 1 tokens: avgdl 2; token 5 is in both, token 7 in one."""
    statistics = count_tokens(arrays([[5, 7, 5], [5]]), vocab_size=10)
    assert (statistics.documents, statistics.mean_length) == (2, 2.0)
    terms, impacts = bm25_impacts(np.array([5, 7, 5], dtype=np.int32), statistics)
    saturation = 0.9 * (1 - 0.4 + 0.4 * 3 / 2)
    expected = [np.log(1 + 0.5 / 2.5) * 2 / (2 + saturation), np.log(1 + 1.5 / 1.5) * 1 / (1 + saturation)]
    assert terms.tolist() == [5, 7]
    assert impacts.tolist() == [round(100 * weight) for weight in expected]
    assert (terms.dtype.name, impacts.dtype.name) == ("int32", "uint16")


def test_a_token_of_all_documents_finds_them() -> None:
    """Its IDF among 3,000 is below 0.0002."""
    texts = arrays([[1, 2 + number % 37] for number in range(3_000)])
    statistics = count_tokens(texts, vocab_size=40)
    assert statistics.idf(np.array([1]))[0] < 2e-4
    assert all(1 in bm25_impacts(ids, statistics)[0] for ids in texts)
    terms, impacts = bm25_impacts(texts[0], statistics)
    assert (terms.tolist(), impacts[0]) == ([1, 2], 1)
    assert bm25_impacts(texts[0], statistics, factor=0.0)[0].tolist() == []


def test_scores_and_ranking_are_those_of_lucene(tmp_path: Path) -> None:
    texts = random_texts(80)
    names = [f"d{number}" for number in range(len(texts))]
    build_word_index(tmp_path / "words", names, (" ".join(f"x{token}" for token in ids) for ids in texts))
    statistics = count_tokens(texts, V)
    fine = np.zeros((len(texts), V))
    for row, ids in enumerate(texts):
        terms, impacts = bm25_impacts(ids, statistics, quantization=5000)
        fine[row, terms] = impacts / 5000
    index = WordIndex.open(tmp_path / "words")
    try:
        for query in random_texts(20, seed=4):
            counts = np.bincount(query, minlength=V)
            scores = fine @ counts
            hits = index.search(" ".join(f"x{token}" for token in query), len(texts))
            assert hits
            theirs = np.array([score for _, score in hits])
            ours = np.array([scores[names.index(name)] for name, _ in hits])
            np.testing.assert_allclose(ours, theirs, atol=1e-4 * len(query))
            assert (np.diff(ours) < 2e-4 * len(query)).all()  # the same order, but for rounding
            assert len(hits) == np.count_nonzero(scores)
    finally:
        index.close()


@settings(deadline=None, max_examples=50)
@given(IdLists)
def test_impacts_are_a_valid_sparse_vector(texts: list[list[int]]) -> None:
    statistics = count_tokens(arrays(texts), V)
    for ids in arrays(texts):
        terms, impacts = bm25_impacts(ids, statistics)
        assert (np.diff(terms) > 0).all()
        assert impacts.min(initial=1) >= 1
        assert set(terms.tolist()) <= set(ids.tolist())


@settings(deadline=None, max_examples=50)
@given(IdLists, st.integers(1, 10))
def test_a_cut_keeps_the_strongest(texts: list[list[int]], top_k: int) -> None:
    statistics = count_tokens(arrays(texts), V)
    ids = arrays(texts)[0]
    terms, impacts = bm25_impacts(ids, statistics)
    kept, strongest = bm25_impacts(ids, statistics, top_k=top_k)
    assert sorted(strongest.tolist()) == sorted(impacts.tolist())[-top_k:]
    assert (np.diff(kept) > 0).all()
    assert (
        dict(zip(kept.tolist(), strongest.tolist(), strict=True)).items()
        <= dict(zip(terms.tolist(), impacts.tolist(), strict=True)).items()
    )


def test_unknown_tokens_are_no_evidence() -> None:
    """An emoji and a word of another script neither count, nor make their document longer."""
    words = ["[UNK]", "music", "player", "text", "editor"]
    pieces = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = TextTokenizer.from_bytes(pieces.to_str().encode(), name="pieces")
    plain, odd = ["music player", "text editor music"], ["music 🎉 player 党 🎉", "text editor music"]
    assert tokenizer.unknown_id in tokenizer.encode(odd[0])
    encoders = [Bm25Encoder.of(texts, tokenizer, 100, None) for texts in (plain, odd)]
    assert encoders[0].statistics.mean_length == encoders[1].statistics.mean_length
    for ours, theirs in zip(encoders[1].impacts(odd), encoders[0].impacts(plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(CorpusError, match="None of the 1 documents has a token that the tokenizer knows"):
        Bm25Encoder.of(["🎉"], tokenizer, 100, None)


def test_a_corpus_without_tokens_is_refused(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "tokenizer.json", ["some text"])
    tokenizer = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    with pytest.raises(CorpusError, match="None of the 2 documents has a token that the tokenizer knows"):
        Bm25Encoder.of(["", ""], tokenizer, 100, None)


def test_learned_impacts_and_bm25_add_up() -> None:
    """score = Σ count · IDF · (w + a · saturation), the IDF being the query's."""
    statistics = count_tokens(arrays([[5, 7, 5], [5]]), vocab_size=10)
    ids = np.array([5, 7, 5], dtype=np.int32)
    plain = bm25_impacts(ids, statistics, factor=2.0)
    saturation = 0.9 * (1 - 0.4 + 0.4 * 3 / 2)
    assert plain[1].tolist() == [round(200 * 2 / (2 + saturation)), round(200 / (1 + saturation))]
    learned = np.array([3, 7, 9], np.int32), np.array([10, 20, 30], np.uint16)
    terms, impacts = add_impacts(plain, learned)
    assert terms.tolist() == [3, 5, 7, 9]
    assert impacts.tolist() == [10, plain[1][0], plain[1][1] + 20, 30]
    assert add_impacts(plain, learned, top_k=2)[0].tolist() == [5, 7]
    high = np.array([5], np.int32), np.array([MAX_IMPACT], np.uint16)
    assert add_impacts(plain, high)[1].tolist() == [MAX_IMPACT, plain[1][1]]


def test_the_first_word_of_a_document_has_the_token_that_a_query_has(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "tokenizer.json", ["a music player for a music file", "music for a player"] * 5)
    tokenizer = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    encoder = Bm25Encoder.of(["music files", "a file of music"], tokenizer, 100, None)
    (first, _), (second, _) = encoder.impacts(["music files", "a file of music"])
    query = tokenizer.query_ids("music")
    assert query != tokenizer.encode("music").tolist()
    assert set(query) <= set(first.tolist()) & set(second.tolist())
