"""The lists and documents beside Lucene's own: the same answers, never those of another index, and no crash."""

import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts import kernels
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.index import DOCUMENTS_FILE, IMPACTS_FILE, ImpactIndex
from lightretriever.artifacts.sparse.jvm import java_class

from tests.lucene.support import Collection, query, random_collection

FILES = (IMPACTS_FILE, DOCUMENTS_FILE)


def forget_files(index: Path) -> None:
    """Make an index of an older version of a new one: Lucene's commit names no other files, and there are none."""
    file = java_class("java.io.File")(str(index))
    directory = java_class("org.apache.lucene.store.MMapDirectory")(file.toPath())
    writer = java_class("org.apache.lucene.index.IndexWriter")(
        directory, java_class("org.apache.lucene.index.IndexWriterConfig")()
    )
    writer.setLiveCommitData(java_class("java.util.HashMap")().entrySet())
    writer.commit()
    writer.close()
    directory.close()
    for name in FILES:
        (index / name).unlink()


def test_an_index_without_them_is_searched_in_lucenes_own(
    written: Path, collection: Collection, tmp_path: Path
) -> None:
    shutil.copytree(written, tmp_path / "index")
    forget_files(tmp_path / "index")
    with ImpactIndex.open(tmp_path / "index") as index:
        asked_for = query({term: 1.0 + term % 3 for term in range(0, 200, 9)})
        ordinals, scores = index.search(*asked_for, 100)
        wanted, true_scores = collection.best(*asked_for, 100)
        np.testing.assert_array_equal(ordinals, wanted)
        np.testing.assert_array_equal(scores, true_scores)
        np.testing.assert_array_equal(index.scores(*asked_for, ordinals), scores)
        np.testing.assert_array_equal(index.terms(42)[0], np.flatnonzero(collection.matrix[42]))
        assert index.documents(np.array([42])) == [collection.documents[42]]
        index.check()


@pytest.mark.parametrize("asked", [0.0, 0.3, 1.0])
def test_java_gives_the_same_from_lucenes_own(tmp_path: Path, asked: float) -> None:
    random = np.random.default_rng(12)
    share = np.linspace(0.9, 0.001, 20) ** 2
    impacts = np.where(random.random((20_000, 20)) < share, random.integers(1, 5000, (20_000, 20)), 0)
    collection = Collection(impacts)
    collection.write(tmp_path / "index", batch=4096)
    some = random.permutation(20_000)[:300]
    with ImpactIndex.open(tmp_path / "index") as plain, ImpactIndex.open(tmp_path / "index") as lucenes:
        lucenes._lists = lucenes._texts = None
        plain.asked = lucenes.asked = asked
        for terms in (range(20), range(0, 20, 3), range(12, 20)):
            asked_for = query({term: float(random.normal(1, 0.7)) for term in terms})
            for k in (1, 100):
                ours, javas = plain.search(*asked_for, k), lucenes.search(*asked_for, k)
                np.testing.assert_array_equal(ours[0], javas[0])
                np.testing.assert_array_equal(ours[1], javas[1])
            np.testing.assert_array_equal(plain.scores(*asked_for, some), lucenes.scores(*asked_for, some))
        np.testing.assert_array_equal(plain.impacts(np.arange(20), some), lucenes.impacts(np.arange(20), some))
        for ordinal in some[:5].tolist():
            np.testing.assert_array_equal(plain.terms(ordinal)[0], lucenes.terms(ordinal)[0])
            np.testing.assert_array_equal(plain.terms(ordinal)[1], lucenes.terms(ordinal)[1])
        assert plain.documents(some) == lucenes.documents(some) == [collection.documents[i] for i in some]


def test_frequent_and_rare_terms_in_one_query(tmp_path: Path) -> None:
    """A term with fewer than four documents in a window of 4,096 has a list of documents, and so has one of huge
    impacts."""
    random = np.random.default_rng(8)
    documents = 3 * 4096 + 17
    shares = np.array([0.0, 1 / documents, 15 / documents, 17 / documents, 0.01, 0.3, 1.0])
    impacts = np.where(random.random((documents, 7)) < shares, random.integers(1, 900, (documents, 7)), 0)
    impacts[-1, 2:] = [4095, 4095, 65_535, 4095, 4095]
    impacts[0, 4] = 4096
    collection = Collection(impacts)
    collection.write(tmp_path / "index", batch=4096)
    postings = np.count_nonzero(impacts, axis=0)
    frequent = (postings >= 4 * 4) & (impacts.max(axis=0) < 4096)
    size = int(3 * postings[frequent].sum() + 6 * postings[~frequent].sum())
    assert size < (tmp_path / "index" / IMPACTS_FILE).stat().st_size < size + 400
    with ImpactIndex.open(tmp_path / "index") as index:
        for weights in (dict.fromkeys(range(7), 1.5), {1: 2.0, 2: 1.0}, {2: 9.0, 5: 0.5, 6: -0.25}, {0: 1.0}):
            for k in (1, 100):
                ordinals, scores = index.search(*query(weights), k)
                wanted, true_scores = collection.best(*query(weights), k)
                np.testing.assert_array_equal(ordinals, wanted)
                np.testing.assert_array_equal(scores, true_scores)
                np.testing.assert_array_equal(scores, index.scores(*query(weights), ordinals))


@pytest.mark.parametrize("name", FILES)
def test_the_file_of_another_index_is_refused(written: Path, collection: Collection, tmp_path: Path, name: str) -> None:
    collection.write(tmp_path / "other")
    shutil.copytree(written, tmp_path / "index")
    shutil.copy(tmp_path / "other" / name, tmp_path / "index" / name)
    with pytest.raises(BundleError, match=rf"index can't be opened .*{name}.*"):
        ImpactIndex.open(tmp_path / "index")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(written: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(written, tmp_path / "index")
    (tmp_path / "index" / name).unlink()
    with pytest.raises(BundleError, match=rf"index can't be opened .*{name}.*"):
        ImpactIndex.open(tmp_path / "index")


def test_an_index_with_damaged_lists_is_refused(written: Path, tmp_path: Path) -> None:
    """Where Lucene looks only for its header and footer."""
    shutil.copytree(written, tmp_path / "index")
    file = tmp_path / "index" / IMPACTS_FILE
    content = bytearray(file.read_bytes())
    content[-20] ^= 0x40
    file.write_bytes(content)
    with pytest.raises(BundleError, match=r"index can't be opened .*the file of impacts is damaged"):
        ImpactIndex.open(tmp_path / "index")


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> npt.NDArray[np.uint8]:
    path = tmp_path_factory.mktemp("small") / "index"
    random_collection(count=60, vocabulary=12, seed=3).write(path)
    return np.fromfile(path / IMPACTS_FILE, np.uint8)


def search_all(lists: npt.NDArray[np.uint8], documents: int) -> None:
    impacts = kernels.Impacts(lists, documents)
    terms, weights = np.arange(12, dtype=np.int32), np.ones(12, np.float32)
    everything = np.full((documents + 7) // 8, 255, np.uint8)  # what is read behind it would be something else
    for among in (None, everything):
        found, _ = impacts.search(terms, weights, 10, among, 0.3)
        assert ((found >= 0) & (found < documents)).all()
    impacts.scores(terms, weights, np.arange(documents))
    impacts.impacts(terms, np.arange(documents))
    impacts.terms(documents - 1)


@settings(max_examples=400, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(1, 4000), st.sampled_from([0, 1, 127, 128, 255])), min_size=1, max_size=8),
    cut=st.sampled_from([0, 0, 0, 1, 8, 100]),
    documents=st.sampled_from([60, 60, 59, 61, 5000]),
)
def test_damaged_lists_never_read_elsewhere(
    lists: npt.NDArray[np.uint8], changes: list[tuple[int, int]], cut: int, documents: int
) -> None:
    """They are refused, or something is found in them; a checksum tells, not this."""
    damaged = lists[: lists.size - cut].copy()
    for place, value in changes:
        damaged[-min(place, damaged.size)] = value
    with suppress(ValueError):
        search_all(damaged, documents)


def test_sound_lists_are_taken(lists: npt.NDArray[np.uint8]) -> None:
    search_all(lists, 60)
    for size in (0, 7, 23, 24, 40):
        with pytest.raises(ValueError, match="damaged"):
            kernels.Impacts(lists[:size].copy(), 60)
    impacts = kernels.Impacts(lists, 60)
    with pytest.raises(ValueError, match="document 60 is none"):
        impacts.scores(np.array([1], np.int32), np.ones(1, np.float32), np.array([60]))
    with pytest.raises(ValueError, match="document -1 is none"):
        impacts.terms(-1)
    with pytest.raises(ValueError, match="a document has no bit"):
        impacts.search(np.array([1], np.int32), np.ones(1, np.float32), 1, np.zeros(7, np.uint8), 0.0)
    with pytest.raises(ValueError, match="every term needs a weight"):
        impacts.search(np.array([1, 2], np.int32), np.ones(1, np.float32), 1, None, 0.0)
    with pytest.raises(TypeError):
        impacts.search(np.array([1]), np.ones(1, np.float32), 1, None, 0.0)


def test_damaged_texts_are_refused(written: Path, collection: Collection) -> None:
    content = np.fromfile(written / DOCUMENTS_FILE, np.uint8)
    count = len(collection.matrix)
    assert kernels.Texts(content, count).read(np.array([3, 0])) == [collection.documents[i] for i in (3, 0)]
    with pytest.raises(ValueError, match=f"document {count} is none"):
        kernels.Texts(content, count).read(np.array([count]))
    for wrong in (content[:-1], content[:10], content[:0]):
        with pytest.raises(ValueError, match="damaged"):
            kernels.Texts(wrong.copy(), count)
    with pytest.raises(ValueError, match="damaged"):
        kernels.Texts(content, count + 1)
    damaged = content.copy()
    damaged[-24 - 8 * (count + 1) + 7] = 0x7F  # where the first one begins
    with pytest.raises(ValueError, match="damaged"):
        kernels.Texts(damaged, count).read(np.array([0]))
