"""The plain lists of frequent terms beside Lucene's: the same answers, and never those of another index."""

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from artifacts.errors import BundleError
from artifacts.lucene.search import ImpactIndex
from tests.lucene.support import Collection, query

FILE = "impacts.windows"
DEMO = Path(__file__).parents[2] / "demo" / "bundle.tar.xz"


def test_an_index_without_them_is_searched_in_lucenes_own(tmp_path: Path) -> None:
    """The demo's index was written before there were any."""
    with tarfile.open(DEMO) as archive:
        archive.extractall(tmp_path, [one for one in archive if one.name.startswith("lucene/")], filter="data")
    path = tmp_path / "lucene"
    assert not (path / FILE).exists()
    with ImpactIndex.open(path) as index:
        terms, impacts = index.terms(42)
        some = terms[np.argsort(-impacts)[:8]]
        weights = np.linspace(0.5, 2, some.size).astype(np.float32)
        scores = index.scores(some, weights, np.arange(index.count))
        best = np.lexsort((np.arange(index.count), -scores))[:100]
        ordinals, found = index.search(some, weights, 100)
        np.testing.assert_array_equal(ordinals, best)
        np.testing.assert_array_equal(found, scores[best])


def test_frequent_and_rare_terms_in_one_query(tmp_path: Path) -> None:
    """A term with fewer than four documents in a window of 4,096 has no plain list, nor has one of huge impacts."""
    random = np.random.default_rng(8)
    documents = 3 * 4096 + 17
    shares = np.array([0.0, 1 / documents, 15 / documents, 17 / documents, 0.01, 0.3, 1.0])
    impacts = np.where(random.random((documents, 7)) < shares, random.integers(1, 900, (documents, 7)), 0)
    impacts[-1, 2:] = [4095, 4095, 65_535, 4095, 4095]
    impacts[0, 4] = 4096
    collection = Collection(impacts)
    collection.write(tmp_path / "index", batch=4096)
    postings = np.count_nonzero(impacts, axis=0)
    listed = int(postings[(postings >= 4 * 4) & (impacts.max(axis=0) < 4096)].sum())
    assert 3 * listed < (tmp_path / "index" / FILE).stat().st_size < 3 * listed + 400
    with ImpactIndex.open(tmp_path / "index") as index:
        for weights in (dict.fromkeys(range(7), 1.5), {1: 2.0, 2: 1.0}, {2: 9.0, 5: 0.5, 6: -0.25}, {0: 1.0}):
            for k in (1, 100):
                ordinals, scores = index.search(*query(weights), k)
                wanted, true_scores = collection.best(*query(weights), k)
                np.testing.assert_array_equal(ordinals, wanted)
                np.testing.assert_array_equal(scores, true_scores)
                np.testing.assert_array_equal(scores, index.scores(*query(weights), ordinals))


def test_the_file_of_another_index_is_refused(written: Path, collection: Collection, tmp_path: Path) -> None:
    collection.write(tmp_path / "other")
    shutil.copytree(written, tmp_path / "index")
    shutil.copy(tmp_path / "other" / FILE, tmp_path / "index" / FILE)
    with pytest.raises(BundleError, match=rf"index can't be opened .*{FILE}.*"):
        ImpactIndex.open(tmp_path / "index")
