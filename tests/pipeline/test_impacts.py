"""Impacts: of BM25, by hand and as Lucene ranks; and document expansion, its formula, aim and bundle."""

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.bundle.manifest import ExpansionInfo, SparseInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import CorpusError, ResumeError
from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.impacts import Bm25Encoder, Expansion, lucene_lengths, word_rows
from lightretriever.artifacts.pipeline.later import LaterDocuments
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.rows import ImpactRow, ImpactRows, ModelRows, TermCounts
from lightretriever.artifacts.pipeline.store import TextStore
from lightretriever.artifacts.pipeline.terms import SparseLeg, encoded_batches
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.pipeline.test_encoded import write
from tests.pipeline.test_growing import write_recipe
from tests.support.commands import only, run
from tests.support.recipes import change
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


W, D, N = 50, 8, 40


def of_counts(frequencies: list[int], documents: int = N) -> Bm25Encoder:
    """The counts of as many words, named w0, w1, ..., in so many documents."""
    names = {f"w{number}": number for number in range(len(frequencies))}
    counts = np.array(frequencies, np.int64)
    return Bm25Encoder(Vocabulary(None, "standard"), names, documents, 6.0, counts, 100, 0.9, 0.4)


def impacts_of(rows: list[tuple[list[int], list[int]]]) -> ImpactRows:
    return ImpactRows.of([(np.array(terms, np.int32), np.array(impacts, np.uint16)) for terms, impacts in rows])


def random_corpus(seed: int) -> tuple[Float32Array, Bm25Encoder, Float32Array, ImpactRows]:
    """Rows of words (W, D), their counts, vectors (N, D) of length 1, and BM25 impacts."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(W, D)).astype(np.float32)
    vectors = random.normal(size=(N, D)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sparse = list[ImpactRow]()
    for _ in range(N):
        terms = np.sort(random.choice(W, 6, replace=False)).astype(np.int32)
        sparse.append((terms, random.integers(1, 100, 6).astype(np.uint16)))
    frequencies = np.bincount(np.concatenate([terms for terms, _ in sparse]), minlength=W)
    return rows, of_counts(np.maximum(frequencies, 2).tolist()), vectors, ImpactRows.of(sparse)


def test_words_of_one_document_are_never_added() -> None:
    rows = np.array([[1.0], [3.0], [2.0], [0.0]], np.float32)
    mean, vector = np.zeros(1, np.float32), np.ones((1, 1), np.float32)
    nothing = impacts_of([([], [])])
    expansion = Expansion(ExpansionInfo(terms=9), rows, np.full(4, 2), mean, 100)
    assert expansion.impacts(vector, nothing)[0][0].tolist() == [0, 1, 2]
    own = impacts_of([([1], [10])])
    found = Expansion.of(ExpansionInfo(terms=9, weight=0.5), rows, of_counts([2, 1, 5, 9]), mean, vector, own)
    assert found.candidates.tolist() == [0, 2]  # word 3 has no row
    assert found.impacts(vector, nothing)[0][0].tolist() == [0, 2]
    [(terms, impacts)] = found.impacts(vector, own)
    assert terms.tolist() == [0, 1, 2]
    assert impacts[1] == 15  # but weighed where a document has them: 10 + 0.5 u 3, u 10/3


def test_the_most_frequent_words_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.pipeline.impacts._MAX_CANDIDATES", 2)
    own = impacts_of([([1], [10])])
    ones = np.ones((4, 1), np.float32)
    found = Expansion.of(ExpansionInfo(), ones, of_counts([3, 2, 9, 3]), np.zeros(1, np.float32), ones[:1], own)
    assert found.candidates.tolist() == [0, 2]


@pytest.mark.parametrize("seed", range(3))
def test_with_all_words_an_impact_is_the_sum_of_both_parts(seed: int) -> None:
    """But for words that a document lacks and that are below the mean, and for own ones, which keep at least 1."""
    rows, bm25, vectors, sparse = random_corpus(seed)
    mean = vectors.mean(axis=0)
    expansion = Expansion.of(ExpansionInfo(terms=W, weight=2.0), rows, bm25, mean, vectors, sparse)
    plain, found = np.zeros((N, W)), np.zeros((N, W))
    for row, (terms, impacts) in enumerate(sparse):
        plain[row, terms] = impacts
    for row, (terms, impacts) in enumerate(expansion.impacts(vectors, sparse)):
        assert (terms.dtype.name, impacts.dtype.name) == ("int32", "uint16")
        assert (np.diff(terms) > 0).all()
        found[row, terms] = impacts
    z = (vectors - mean) @ rows.T
    own = plain > 0
    np.testing.assert_allclose(expansion.unit, plain[own].mean() / np.sqrt(np.mean(z[own] ** 2)), rtol=1e-5)
    exact = np.minimum(plain + 2 * expansion.unit * z, 511)
    np.testing.assert_allclose(found[own], np.maximum(exact[own], 1), atol=0.51)
    np.testing.assert_allclose(found[~own], np.maximum(exact[~own], 0), atol=0.51)


def test_fewer_words_are_those_of_the_highest_weight() -> None:
    rows, bm25, vectors, sparse = random_corpus(5)
    mean = vectors.mean(axis=0)
    few, every_one = (
        Expansion.of(ExpansionInfo(terms=count), rows, bm25, mean, vectors, sparse).impacts(vectors, sparse)
        for count in (7, W)
    )
    for (own, _), (kept, impacts), (terms, every) in zip(sparse, few, every_one, strict=True):
        added = ~np.isin(kept, own)
        left_out = every[~np.isin(terms, kept)]
        assert added.sum() <= 7
        assert impacts[added].min(initial=65_535) >= left_out.max(initial=0)
        assert added.sum() == min(7, (~np.isin(terms, own)).sum())
        np.testing.assert_array_equal(impacts, every[np.isin(terms, kept)])


def test_a_corpus_without_words_or_directions_is_left_as_it_is() -> None:
    rows, bm25, vectors, _ = random_corpus(1)
    nothing = impacts_of([([], [])] * N)
    empty = Expansion.of(ExpansionInfo(), rows, bm25, vectors.mean(axis=0), vectors, nothing)
    assert (empty.unit, {len(terms) for terms, _ in empty.impacts(vectors, nothing)}) == (0, {0})
    same, two, all_one = np.repeat(vectors[:1], 2, axis=0), impacts_of([([3], [9])] * 2), impacts_of([([3], [9])] * N)
    flat = Expansion.of(ExpansionInfo(), rows, bm25, vectors[0], same, two)
    assert [row[1].tolist() for row in flat.impacts(same, two)] == [[9], [9]]
    alone = Expansion.of(ExpansionInfo(), rows, of_counts([1] * W), vectors.mean(axis=0), vectors, all_one)
    assert alone.candidates.size == 0
    assert {tuple(terms) for terms, _ in alone.impacts(vectors, all_one)} == {(3,)}


def test_a_word_that_the_corpus_lacks_keeps_its_impact() -> None:
    rows, bm25, vectors, sparse = random_corpus(2)
    expansion = Expansion.of(ExpansionInfo(terms=5), rows, bm25, vectors.mean(axis=0), vectors, sparse)
    new = impacts_of([([3, W + 2], [50, 60])] * N)
    for terms, impacts in expansion.impacts(vectors, new):
        assert impacts[terms == W + 2].tolist() == [60]


def test_the_row_of_a_word_is_the_mean_over_its_forms(tmp_path: Path) -> None:
    """Weighted by how often the corpus has each form; a form's row is the sum over its tokens."""
    words = {word: place for place, word in enumerate(["[UNK]", "fox", "##es", "running", "runs", "the", "wi", "fi"])}
    pieces = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = TextTokenizer.from_bytes(pieces.to_str().encode(), name="pieces")
    table = np.random.default_rng(1).normal(size=(8, D)).astype(np.float32)
    texts = ["Fox fox foxes running", "the runs foxes", "Lynx wi-fi 日本", "fox"]
    terms = Vocabulary(None, "english")
    bm25 = Bm25Encoder.of(TermCounts.of(terms.terms_of(texts)), terms, quantization=100, k1=0.9, b=0.4)
    rows = word_rows(texts, bm25, tokenizer, table)
    assert rows.shape == (len(bm25.frequencies), D)
    found = dict(zip(bm25.numbers, rows, strict=True))
    np.testing.assert_allclose(found["fox"], (3 * table[1] + 2 * (table[1] + table[2])) / 5, rtol=1e-5)
    np.testing.assert_allclose(found["run"], (table[3] + table[4]) / 2, rtol=1e-5)
    np.testing.assert_array_equal(found["wi"], table[6])
    for word in ("lynx", "wifi", "日", "日本"):
        assert not found[word].any()


def test_measuring_keeps_the_sample_alone(tmp_path: Path) -> None:
    """A thousand of many documents: the vectors of the others are let go."""
    count, size, random = 8_000, 256, np.random.default_rng(3)
    lines = [{"_id": f"{row}", "text": f"fox {row % 50}"} for row in range(count)]
    corpus = EncodedCorpus.of(write(tmp_path, lines), tmp_path / "encoded")
    train_tokenizer(tmp_path / "tokenizer.json", ["fox"])
    tokenizer = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    table = random.normal(size=(tokenizer.vocab_size, size)).astype(np.float32)
    sparse: dict[str, Any] = {"vocabulary": "words", "language": "english", "impacts": "bm25", "k1": 0.9, "b": 0.4}
    info = SparseInfo(**sparse, expansion=ExpansionInfo(terms=4))
    leg = SparseLeg(info, Vocabulary(None, "english"), tokenizer, table)
    corpus.terms(leg.vocabulary)
    vectors = random.normal(size=(50, size)).astype(np.float16)
    store = TextStore.begin(tmp_path / "encode", {"dimension": size, "shard_size": 256})
    store.add(corpus.digests[:50], ModelRows(vectors, impacts_of([([], [])] * 50), np.zeros(50, np.bool_)))
    tracemalloc.start()
    try:
        next(encoded_batches(tmp_path, corpus, leg))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < count * size * 2  # half of all vectors


def test_a_bundle_finds_documents_by_words_that_they_lack(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "expand")
    run("build", recipe)
    run(*only("index"), change(recipe, {"expand": False}), "--output", tmp_path / "plain")
    bundle, plain = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "plain")
    assert verify_bundle(bundle.path) == []
    assert bundle.manifest.sparse.expansion == ExpansionInfo(terms=16, weight=0.25)
    assert plain.manifest.sparse.expansion is None
    with bundle.sparse() as one, plain.sparse() as other:
        added = 0
        for row in range(one.count):
            found, own = (dict(zip(*index.terms(row), strict=True)) for index in (one, other))
            assert own.keys() <= found.keys()
            assert len(found) - len(own) <= 16
            assert max(found.values()) <= 511
            added += len(found) - len(own)
            assert found != own
        assert added > one.count
        counts = Counter(term for row in other.rows(0, other.count) for term in row)
        alone = {term for term, count in counts.items() if count == 1}
        for row in range(one.count):  # a word of one document is added to no other
            assert not alone & (set(one.terms(row)[0]) - set(other.terms(row)[0]))


def test_documents_that_come_later_need_the_sparse_leg_and_the_counts_of_the_bundle(tmp_path: Path) -> None:
    """The work directory has the counts of the bundle that was written last."""
    recipe = write_recipe(tmp_path, "expand")
    run("build", recipe)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    for changed in ({"expand": False}, {"expand.weight": 1.0}, {"index.language": "german"}, {"index.k1": 1.2}):
        with raises(ResumeError):
            LaterDocuments.open(read_recipe(recipe, Recipe, changed), manifest, MAX_IMPACT)
    loaded, table = read_recipe(recipe, Recipe), tmp_path / "work" / "tables" / "web" / "table.npy"
    rows = np.load(table)
    np.save(table, rows + 1)
    with raises(ResumeError, naming="table_sha256"):
        LaterDocuments.open(loaded, manifest, MAX_IMPACT)
    np.save(table, rows)
    run(*only("index"), change(recipe, {"index": {"k1": 1.2}}), "--output", tmp_path / "other")
    with raises(ResumeError):
        LaterDocuments.open(loaded, manifest, MAX_IMPACT)
    (tmp_path / "work" / "bm25.json").write_text('{"words": {}, "tokens": null}')  # as an earlier version had it
    with raises(ResumeError):
        LaterDocuments.open(loaded, manifest, MAX_IMPACT)
