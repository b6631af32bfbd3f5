"""The posting lists beside Lucene's own: the same answers, never those of another index, and no crash."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts import kernels
from lightretriever.artifacts.errors import BundleError, JavaError
from lightretriever.artifacts.sparse.compiled import IMPACTS_FILE, CompiledImpacts
from lightretriever.artifacts.sparse.index import ImpactIndex

from tests.lucene.support import Both, Collection, named, query, random_collection


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
    with Both(tmp_path / "index") as index:
        for weights in (dict.fromkeys(range(7), 1.5), {1: 2.0, 2: 1.0}, {2: 9.0, 5: 0.5, 6: -0.25}, {0: 1.0}):
            for k in (1, 100):
                ordinals, scores = index.search(*query(weights), k)
                wanted, true_scores = collection.best(*query(weights), k)
                np.testing.assert_array_equal(ordinals, wanted)
                np.testing.assert_array_equal(scores, true_scores)
                np.testing.assert_array_equal(scores, index.scores(*query(weights), ordinals))


def test_the_file_is_there_only_on_request(collection: Collection, tmp_path: Path) -> None:
    collection.write(tmp_path / "index", accelerate=False)
    assert not (tmp_path / "index" / IMPACTS_FILE).exists()
    with ImpactIndex.open(tmp_path / "index") as index:
        index.check()
        terms, weights = query({term: 1.0 + term % 3 for term in range(0, 200, 9)})
        found = index.search(named(terms), weights, 100)
        for part, wanted in zip(found, collection.best(terms, weights, 100), strict=True):
            np.testing.assert_array_equal(part, wanted)


def test_the_file_of_another_index_is_refused(written: Path, collection: Collection, tmp_path: Path) -> None:
    collection.write(tmp_path / "other")
    shutil.copytree(written, tmp_path / "index")
    shutil.copy(tmp_path / "other" / IMPACTS_FILE, tmp_path / "index" / IMPACTS_FILE)
    with pytest.raises(BundleError, match=rf"index can't be opened .*{IMPACTS_FILE}.*"):
        ImpactIndex.open(tmp_path / "index")


def test_a_file_that_is_missing_is_named(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "index")
    (tmp_path / "index" / IMPACTS_FILE).unlink()
    with pytest.raises(BundleError, match=rf"index can't be opened .*{IMPACTS_FILE}.*"):
        ImpactIndex.open(tmp_path / "index")
    with pytest.raises(BundleError, match=rf"{IMPACTS_FILE} can't be opened .*No such file"):
        CompiledImpacts(tmp_path / "index" / IMPACTS_FILE, 1500)


def test_damaged_lists_are_refused(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "index")
    file = tmp_path / "index" / IMPACTS_FILE
    content = bytearray(file.read_bytes())
    content[-20] ^= 0x40
    file.write_bytes(content)
    with pytest.raises(BundleError, match=r"impacts\.plain can't be opened \(the file of impacts is damaged\)"):
        CompiledImpacts(file, 1500)
    with ImpactIndex.open(tmp_path / "index") as index, pytest.raises(JavaError, match=IMPACTS_FILE):
        index.check()


def test_closing_while_others_search_harms_nobody(written: Path, collection: Collection) -> None:
    asked_for = query({1: 1.0, 2: 1.0, 3: 1.0})
    wanted, _ = collection.best(*asked_for, 10)
    closing = CompiledImpacts(written / IMPACTS_FILE, 1500)
    running = threading.Barrier(5)

    def search_until_closed() -> None:
        running.wait()
        while True:
            np.testing.assert_array_equal(closing.search(*asked_for, 10)[0], wanted)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(search_until_closed) for _ in range(4)]
        running.wait()
        for _ in range(50):
            closing.search(*asked_for, 10)
        closing.close()
        closing.close()
        for answer in answers:
            with pytest.raises(BundleError, match=r"impacts\.plain is closed\. Open it again"):
                answer.result()


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
        impacts.impacts(np.array([1], np.int32), np.array([-1]))
    with pytest.raises(ValueError, match="a document has no bit"):
        impacts.search(np.array([1], np.int32), np.ones(1, np.float32), 1, np.zeros(7, np.uint8), 0.0)
    with pytest.raises(ValueError, match="every term needs a weight"):
        impacts.search(np.array([1, 2], np.int32), np.ones(1, np.float32), 1, None, 0.0)
    with pytest.raises(TypeError):
        impacts.search(np.array([1]), np.ones(1, np.float32), 1, None, 0.0)
