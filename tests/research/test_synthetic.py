"""Synthetic corpora have the statistics of the corpus that they were fitted to."""

import numpy as np
import pytest

from lightretriever.artifacts.bundle.batches import EncodedBatch, check_batch
from research.speed.make_corpus import Sample, SyntheticCorpus
from tests.support.wordings import raises

VOCABULARY, DIMENSION, TOPICS, EACH = 300, 12, 5, 40


def sample() -> Sample:
    """Documents of five subjects; each subject has a direction and twenty terms, and all share ten more."""
    generator = np.random.default_rng(3)
    centres = generator.standard_normal((TOPICS, DIMENSION)) * 4
    dense, rows, impacts = [], [], []
    for number in range(TOPICS * EACH):
        topic = number % TOPICS
        vector = centres[topic] + generator.standard_normal(DIMENSION)
        dense.append(vector / np.linalg.norm(vector))
        own = 20 * topic + np.flatnonzero(generator.random(20) < 0.4)
        common = 250 + np.flatnonzero(generator.random(10) < 0.8)
        rows.append(np.concatenate([own, common]))
        impacts.append(np.where(rows[-1] < 250, 200 + rows[-1] % 7, 10 + rows[-1] % 3))
    return Sample(
        [b'{"_id":"d%d","text":"topic %d"}' % (number, number % TOPICS) for number in range(TOPICS * EACH)],
        np.array(dense, dtype=np.float32),
        np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        np.concatenate(rows).astype(np.int32),
        np.concatenate(impacts).astype(np.uint16),
    )


def joined(batches: list[EncodedBatch]) -> Sample:
    return Sample.of(batches, DIMENSION)


@pytest.fixture(scope="module")
def drawn() -> Sample:
    return joined(list(SyntheticCorpus(sample(), seed=1, neighbours=20).draw(10_000)))


def test_terms_are_as_frequent(drawn: Sample) -> None:
    real = sample()
    expected = np.bincount(real.terms, minlength=VOCABULARY) / len(real.documents)
    found = np.bincount(drawn.terms, minlength=VOCABULARY) / len(drawn.documents)
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert ((found > 0) <= (expected > 0)).all()
    assert np.diff(drawn.indptr).mean() == pytest.approx(np.diff(real.indptr).mean(), rel=0.02)


def test_impacts_are_those_of_the_term(drawn: Sample) -> None:
    expected = np.where(drawn.terms < 250, 200 + drawn.terms % 7, 10 + drawn.terms % 3)
    np.testing.assert_array_equal(drawn.impacts, expected)


def test_both_sides_of_a_document_are_about_the_same(drawn: Sample) -> None:
    """Its terms, its vector and its text belong to one of the fitted subjects."""
    real = sample()
    centres = np.array([real.dense[topic::TOPICS].mean(axis=0) for topic in range(TOPICS)])
    nearest = (drawn.dense @ centres.T).argmax(axis=1)
    for number in range(200):
        terms = drawn.terms[drawn.indptr[number] : drawn.indptr[number + 1]]
        assert set((terms[terms < 250] // 20).tolist()) <= {nearest[number]}
        assert drawn.documents[number].endswith(b'topic %d"}' % nearest[number])


def test_vectors_scatter_as_much(drawn: Sample) -> None:
    real = sample()
    np.testing.assert_allclose(np.linalg.norm(drawn.dense, axis=1), 1, atol=1e-5)
    for topic in range(TOPICS):
        own = real.dense[topic::TOPICS]
        centre = own.mean(axis=0)
        near = drawn.dense[[document.endswith(b'topic %d"}' % topic) for document in drawn.documents]]
        assert (near @ centre).mean() == pytest.approx((own @ centre).mean(), abs=0.02)
        assert 0.5 < (near @ centre).std() / (own @ centre).std() < 2
        assert (near[:200] @ near[:200].T).mean() == pytest.approx((own @ own.T).mean(), abs=0.02)


def every_other(real: Sample) -> Sample:
    rows = np.arange(0, len(real.documents), 2)
    _, places = real.postings(rows)
    indptr = np.concatenate([[0], np.cumsum(np.diff(real.indptr)[rows])]).astype(np.int64)
    return Sample(real.documents[::2], real.dense[::2], indptr, real.terms[places], real.impacts[places])


def test_new_documents_lie_among_the_old_ones() -> None:
    """Drawn after every other document, they are as far from the rest as those are from each other."""
    real = sample()
    half = every_other(real)
    drawn = joined(list(SyntheticCorpus(half, seed=1, neighbours=20).draw(100)))
    rest = real.dense[1::2]
    of_drawn = np.sort(drawn.dense @ rest.T)[:, -5:].mean()
    of_real = np.sort(half.dense @ rest.T)[:, -5:].mean()
    assert of_drawn == pytest.approx(of_real, abs=0.02)
    assert (drawn.dense @ half.dense.T).max(axis=1).mean() < 0.995  # no copies


def test_every_document_takes_part_equally() -> None:
    """Also those that are near to many, or to none: a term of one document alone is as frequent whose it is."""
    real = sample()
    starts = real.indptr[:-1]
    terms = real.terms.copy()
    terms[starts] = VOCABULARY + np.arange(len(starts))
    own = Sample(real.documents, real.dense, real.indptr, terms, real.impacts)
    drawn = joined(list(SyntheticCorpus(own, seed=1, neighbours=20).draw(40_000)))
    counts = np.bincount(drawn.terms, minlength=VOCABULARY + len(starts))[VOCABULARY:]
    assert counts.sum() == pytest.approx(40_000, rel=0.02)
    assert 140 < counts.min() <= counts.max() < 265  # 200 each, give or take four deviations


def test_it_is_repeatable_and_fits_into_a_bundle() -> None:
    first, again, other = (list(SyntheticCorpus(sample(), seed=seed, neighbours=20).draw(1500)) for seed in (1, 1, 2))
    assert [len(batch.ids) for batch in first] == [1024, 476]
    assert first[1].ids[0] == "s1024"
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.terms, two.terms)
        np.testing.assert_array_equal(one.dense, two.dense)
    assert not np.array_equal(first[0].terms[:100], other[0].terms[:100])
    for batch, start in zip(first, (0, 1024), strict=True):
        check_batch(batch, vocab_size=VOCABULARY, dimension=DIMENSION, first=start)


def test_a_sample_is_cut_like_a_bundle() -> None:
    real = sample()
    ids = [f"d{number}" for number in range(len(real.documents))]
    batch = EncodedBatch(ids, real.documents, real.dense, real.indptr, real.terms, real.impacts)
    cut = Sample.of([batch, batch], dimension=5, top_k=3)
    assert cut.dense.shape == (2 * len(real.documents), 5)
    np.testing.assert_allclose(np.linalg.norm(cut.dense, axis=1), 1, atol=1e-6)
    assert np.diff(cut.indptr).max() == 3
    assert cut.impacts.min() > 0


def test_no_documents_are_refused() -> None:
    none = np.zeros(1, np.int64)
    nothing = Sample([], np.empty((0, 3), np.float32), none, np.empty(0, np.int32), np.empty(0, np.uint16))
    with raises(ValueError):
        SyntheticCorpus(nothing)
