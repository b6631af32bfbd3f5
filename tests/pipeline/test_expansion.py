"""Document expansion by the token table: the formula, what ranking it aims at, and a bundle that has it."""

import tracemalloc
from collections import Counter
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
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.impacts import Bm25Encoder, Expansion, word_rows
from lightretriever.artifacts.pipeline.later import LaterDocuments
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.rows import ImpactRow, ImpactRows, ModelRows, TermCounts
from lightretriever.artifacts.pipeline.store import TextStore
from lightretriever.artifacts.pipeline.terms import SparseLeg, encoded_batches
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.pipeline.test_encoded import write
from tests.pipeline.test_growing import write_recipe
from tests.support.commands import only, run
from tests.support.recipes import change
from tests.support.tiny import train_tokenizer
from tests.support.wordings import raises

W, D, N = 50, 8, 40


def counted(frequencies: list[int], documents: int = N) -> Bm25Encoder:
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
    return rows, counted(np.maximum(frequencies, 2).tolist()), vectors, ImpactRows.of(sparse)


def test_words_of_one_document_are_never_added() -> None:
    rows = np.array([[1.0], [3.0], [2.0], [0.0]], np.float32)
    mean, vector = np.zeros(1, np.float32), np.ones((1, 1), np.float32)
    nothing = impacts_of([([], [])])
    expansion = Expansion(ExpansionInfo(terms=9), rows, np.full(4, 2), mean, 100)
    assert expansion.impacts(vector, nothing)[0][0].tolist() == [0, 1, 2]
    own = impacts_of([([1], [10])])
    found = Expansion.of(ExpansionInfo(terms=9, weight=0.5), rows, counted([2, 1, 5, 9]), mean, vector, own)
    assert found.candidates.tolist() == [0, 2]  # word 3 has no row
    assert found.impacts(vector, nothing)[0][0].tolist() == [0, 2]
    [(terms, impacts)] = found.impacts(vector, own)
    assert terms.tolist() == [0, 1, 2]
    assert impacts[1] == 15  # but weighed where a document has them: 10 + 0.5 u 3, u 10/3


def test_the_most_frequent_words_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.pipeline.impacts._MAX_CANDIDATES", 2)
    own = impacts_of([([1], [10])])
    ones = np.ones((4, 1), np.float32)
    found = Expansion.of(ExpansionInfo(), ones, counted([3, 2, 9, 3]), np.zeros(1, np.float32), ones[:1], own)
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
    alone = Expansion.of(ExpansionInfo(), rows, counted([1] * W), vectors.mean(axis=0), vectors, all_one)
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
