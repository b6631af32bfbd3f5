"""BM25 as impacts: the formula, Lucene's rounding of lengths, and the ranking of Lucene's own BM25."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.pipeline.impacts import Bm25Encoder, lucene_lengths
from lightretriever.artifacts.pipeline.rows import TermCounts
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.tiny import train_tokenizer
from tests.support.wordings import raises

WORDS = Vocabulary(None, "english")


def counted(texts: Sequence[str], vocabulary: Vocabulary = WORDS, **parameters: float) -> Bm25Encoder:
    given = {"k1": 0.9, "b": 0.4} | parameters
    return Bm25Encoder.of(
        TermCounts.of(vocabulary.terms_of(texts)), vocabulary, quantization=int(given.pop("quantization", 100)), **given
    )


def rows_of(encoder: Bm25Encoder, texts: Sequence[str]) -> list[dict[str, int]]:
    rows = encoder.impacts(texts)
    names = [*encoder.numbers]
    return [
        {names[term]: impact for term, impact in zip(terms.tolist(), impacts.tolist(), strict=True)}
        for terms, impacts in rows
    ]


def test_a_document_by_hand() -> None:
    """Two documents of 3 and 1 words: avgdl 2; one word is in both, the other in one."""
    texts = ["fox wolf foxes", "fox", "the"]
    encoder = counted(texts)
    assert (encoder.documents, encoder.mean_length) == (2, 2.0)  # a text without a word is no document
    long, short = (0.9 * (1 - 0.4 + 0.4 * length / 2) for length in (3, 1))
    common, rare = np.log(1 + 0.5 / 2.5), np.log(1 + 1.5 / 1.5)
    fox, wolf, alone = (round(100 * one) for one in (common * 2 / (2 + long), rare / (1 + long), common / (1 + short)))
    assert rows_of(encoder, texts) == [{"fox": fox, "wolf": wolf}, {"fox": alone}, {}]
    ((terms, impacts), *_) = encoder.impacts(texts)
    assert (terms.dtype.name, impacts.dtype.name) == ("int32", "uint16")


def test_lengths_are_rounded_as_lucene_rounds_them() -> None:
    rounding = java_class("org.apache.lucene.util.SmallFloat")
    lengths = np.append(np.arange(100_001), [2**20 - 1, 2**24, 2**30 + 7, 2**31 - 1])
    expected = [java_call(rounding.byte4ToInt, java_call(rounding.intToByte4, length)) for length in lengths.tolist()]
    np.testing.assert_array_equal(lucene_lengths(lengths), expected)


def random_texts(lengths: Sequence[int], seed: int, vocabulary: int = 3000) -> list[str]:
    """Texts of words whose frequencies are as in a language."""
    shares = 1 / np.arange(2, vocabulary + 2)
    words = np.random.default_rng(seed).choice(vocabulary, sum(lengths), p=shares / shares.sum())
    return [" ".join(f"w{word}" for word in part) for part in np.split(words, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)])
def test_scores_are_those_of_lucenes_bm25(tmp_path: Path, k1: float, b: float) -> None:
    """But for half an impact of each word, and words of all documents, which have at least 1."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(4, 0.9, 1000), 1, 500).astype(int).tolist()
    texts, quantization = random_texts(lengths, seed=int(10 * k1)), 4000
    ids = [str(number) for number in range(len(texts))]
    encoder = counted(texts, quantization=quantization, k1=k1, b=b)
    with ImpactIndexWriter(tmp_path / "impacts") as writer:
        found = encoder.impacts(texts)
        writer.add(ids, [b"{}"] * len(ids), found.terms.at, found.terms.values, found.impacts, [*encoder.numbers])
    build_word_index(tmp_path / "words", ids, texts)
    with ImpactIndex.open(tmp_path / "impacts") as impacts, WordIndex.open(tmp_path / "words") as words:
        for query in random_texts(random.integers(1, 9, 40).tolist(), seed=6):
            (terms,) = WORDS.terms_of([query])
            bm25 = {int(name): score for name, score in words.ranked(query, len(texts), k1, b)}
            weights = np.ones(len(terms), np.float32)
            hits = impacts.find((terms, weights), len(texts), np.empty(0, np.int64))
            assert {*hits.ordinals.tolist()} == bm25.keys()
            theirs = [bm25[ordinal] for ordinal in hits.ordinals.tolist()]
            np.testing.assert_allclose(hits.scores / quantization, theirs, rtol=1e-5, atol=len(terms) / quantization)


def test_a_word_of_all_documents_finds_them() -> None:
    """Its IDF among 3,000 is below 0.0002."""
    texts = [f"fox w{number % 37}" for number in range(3_000)]
    encoder = counted(texts)
    assert encoder.idf(np.array([encoder.numbers["fox"]]))[0] < 2e-4
    assert all(row["fox"] == 1 for row in rows_of(encoder, texts))


def test_an_impact_is_no_higher_than_an_index_holds() -> None:
    assert rows_of(counted(["fox", "wolf"], quantization=10**6), ["fox"]) == [{"fox": MAX_IMPACT}]


def test_a_word_that_comes_later_is_in_no_document_yet() -> None:
    texts = ["fox wolf", "fox bear"]
    encoder = counted(texts)
    again = Bm25Encoder.again(encoder.counted(), WORDS)
    assert again.counted() == encoder.counted()
    later = rows_of(again, ["fox lynx lynx"])[0]
    assert set(later) == {"fox", "lynx"}
    saturation = 0.9 * (1 - 0.4 + 0.4 * 3 / 2)
    assert later["lynx"] == round(100 * np.log(1 + 2.5 / 0.5) * 2 / (2 + saturation))
    assert again.counted() == encoder.counted()  # and is not kept
    assert rows_of(again, texts) == rows_of(encoder, texts)


def test_unknown_tokens_are_no_evidence() -> None:
    """An emoji and a word of another script neither count, nor make their document longer."""
    words = ["[UNK]", "music", "player", "text", "editor"]
    pieces = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = TextTokenizer.from_bytes(pieces.to_str().encode(), name="pieces")
    plain, odd = ["music player", "text editor music"], ["music 🎉 player 党 🎉", "text editor music"]
    assert tokenizer.unknown_id in tokenizer.encode(odd[0])
    encoders = [counted(texts, Vocabulary(tokenizer, None)) for texts in (plain, odd)]
    assert encoders[0].mean_length == encoders[1].mean_length == 2.5
    assert rows_of(encoders[1], odd) == rows_of(encoders[0], plain)
    with raises(CorpusError):
        counted(["🎉"], Vocabulary(tokenizer, None))


@pytest.mark.parametrize("texts", [[], ["", ""], ["the", "of"]])
def test_a_corpus_without_terms_is_refused(texts: list[str]) -> None:
    with raises(CorpusError):
        counted(texts)


def test_the_first_word_of_a_document_has_the_token_that_a_query_has(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "tokenizer.json", ["a music player for a music file", "music for a player"] * 5)
    tokenizer = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    texts = ["music files", "a file of music"]
    first, second = rows_of(counted(texts, Vocabulary(tokenizer, None)), texts)
    query = tokenizer.query_ids("music")
    assert query != tokenizer.encode("music").tolist()
    assert {str(token) for token in query} <= set(first) & set(second)
