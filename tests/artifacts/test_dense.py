"""The dense index: real Faiss indexes of every kind against plain numpy."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.dense.build import build_dense_index, choose_parameters, factory_for, write_dense_index
from lightretriever.artifacts.dense.index import DenseIndex, best_first
from lightretriever.artifacts.dense.later import MIN_CODED, LaterIndex, LaterIndexWriter
from lightretriever.artifacts.errors import BundleError
from tests.support.machine import full_disk, mapped_bytes
from tests.support.vectors import Layout, laid_out, random_unit, recall, unit
from tests.support.wordings import raises

KINDS: dict[str, tuple[Layout, int]] = {
    "flat": ("flat", 0),
    "codes": ("codes", 0),
    "lists": ("lists", 0),
    "queries": ("lists", 50),
}
"""How it is laid out, and the number of queries that take part."""
COUNT, DIMENSION = 1000, 16

Vectors = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return random_unit(COUNT)


def built(vectors: Vectors, kind: str) -> Any:
    layout, queries = KINDS[kind]
    with laid_out(layout):
        return build_dense_index(vectors, random_unit(queries, vectors.shape[1]))[0]


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, vectors: Vectors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an index. Read only."""
    path: Path = tmp_path_factory.mktemp("dense") / request.param
    write_dense_index(built(vectors, request.param), path)
    return path


@pytest.fixture(scope="module")
def opened(written: Path, vectors: Vectors) -> tuple[str, DenseIndex]:
    parameters, _ = choose_parameters(faiss.read_index(str(written)), vectors, random_unit(50, seed=4))
    return written.name, DenseIndex.open(written, parameters)


def test_most_of_the_true_neighbours_are_found(opened: tuple[str, DenseIndex], vectors: Vectors) -> None:
    """Wide searches: a parameter that is not applied, or L2 in place of inner product, would show here."""
    found = recall(opened[1], vectors, random_unit(20, seed=9), 10)
    assert found >= ({"flat": 1.0, "codes": 0.85}.get(opened[0], 0.3))


def test_scores_of_given_documents_are_those_of_the_search(opened: tuple[str, DenseIndex], vectors: Vectors) -> None:
    kind, index = opened
    for query in random_unit(5, seed=9):
        ordinals, scores = index.search(query, 50)
        np.testing.assert_array_equal(index.scores(query, ordinals), scores)
        every = index.scores(query, np.arange(COUNT))
        assert every.dtype == np.float32
        np.testing.assert_allclose(every, vectors @ query, atol=1e-5 if kind == "flat" else 2e-2)


def test_vectors_are_those_that_faiss_gives(opened: tuple[str, DenseIndex], written: Path) -> None:
    ordinals = np.random.default_rng(5).integers(0, COUNT, 200)  # some twice
    expected = faiss.read_index(str(written)).reconstruct_batch(ordinals)
    np.testing.assert_array_equal(opened[1].vectors(ordinals), expected, strict=True)


def test_a_score_does_not_depend_on_the_other_documents() -> None:
    vectors = random_unit(1000, 250)
    for kind in ("flat", "codes"):
        index = DenseIndex(built(vectors, kind))
        for query in random_unit(5, 250, seed=9):
            every = index.scores(query, np.arange(COUNT))
            found, scores = index.search(query, 300)
            np.testing.assert_array_equal(scores, every[found])
            for count in (1, 3, 17):
                np.testing.assert_array_equal(index.scores(query, np.arange(5, 5 + count)), every[5 : 5 + count])


@pytest.mark.parametrize("k", [1, 99, 400])
def test_flat_breaks_ties_by_ordinal_even_at_the_last_place(k: int) -> None:
    distinct = random_unit(4)
    vectors = distinct[np.arange(500) % 4]
    query = random_unit(1, seed=9)[0]
    place = np.argsort(np.argsort(-(distinct @ query)))
    expected, allowed = np.lexsort((np.arange(500), place[np.arange(500) % 4])), np.arange(500) % 3 == 1
    index = DenseIndex(built(vectors, "flat"))
    np.testing.assert_array_equal(index.search(query, k)[0], expected[:k])
    among = np.packbits(allowed, bitorder="little")
    np.testing.assert_array_equal(index.search(query, k, among)[0], expected[allowed[expected]][:k])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_building_is_deterministic_whatever_the_threads(vectors: Vectors, kind: str) -> None:
    before = faiss.omp_get_max_threads()
    indexes = []
    try:
        for threads in (1, 3):
            faiss.omp_set_num_threads(threads)
            indexes.append(faiss.serialize_index(built(vectors, kind)).tobytes())
    finally:
        faiss.omp_set_num_threads(before)
    assert indexes[0] == indexes[1]


def test_opening_does_not_read_the_vectors(tmp_path: Path) -> None:
    for kind in ("flat", "codes"):
        path = tmp_path / kind
        write_dense_index(built(random_unit(10_000, 256), kind), path)
        index = DenseIndex.open(path)
        size, resident = mapped_bytes(path)
        assert size >= path.stat().st_size
        assert resident < path.stat().st_size / 2
        assert index.count == 10_000


def test_a_search_uses_one_thread_in_every_calling_thread(opened: tuple[str, DenseIndex]) -> None:
    def threads_after(work: Callable[[], object]) -> int:
        work()
        return int(faiss.omp_get_max_threads())

    for work in (lambda: opened[1].search(random_unit(1)[0], 3), lambda: opened[1].vectors(np.arange(3))):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(threads_after, work).result() == 1


@pytest.mark.parametrize(
    ("count", "dimension", "factory"),
    [
        (1, 16, "Flat"),
        (5_001, 1024, "PQ512x4fs,Refine(SQ8)"),
        (20_001, 1024, "IVF128,PQ512x4fsr,Refine(SQ8)"),
        (100_000, 256, "IVF256,PQ128x4fsr,Refine(SQ8)"),
        (1_000_000, 256, "IVF1024,PQ128x4fsr,Refine(SQ8)"),
        (1_000_000, 1, "IVF1024,PQ1x4fsr,Refine(SQ8)"),
    ],
)
def test_the_factory_follows_the_size(count: int, dimension: int, factory: str) -> None:
    assert factory_for(count, dimension) == factory
    faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)  # Faiss takes it
    lists = int(factory.split(",")[0][3:]) if factory.startswith("IVF") else 0
    assert lists * 39 <= count


def test_parameters_are_applied_when_opening(vectors: Vectors, tmp_path: Path) -> None:
    write_dense_index(built(vectors, "lists"), tmp_path / "i")
    query = random_unit(1, seed=9)[0]
    narrow = DenseIndex.open(tmp_path / "i", {"nprobe": 1}).search(query, COUNT)[0]
    wide = DenseIndex.open(tmp_path / "i", {"nprobe": 32, "k_factor_rf": 2}).search(query, COUNT)[0]
    assert len(narrow) < len(wide) == COUNT
    for name, value in (("nprobe", 33), ("efSearch", 64), ("k_factor_rf", 1e30), ("k_factor_rf", 0), ("nprobe", -1)):
        with raises(BundleError, naming="dense.parameters"):
            DenseIndex.open(tmp_path / "i", {name: value})


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("few", [0, 20_000])
def test_a_search_among_some_documents(
    opened: tuple[str, DenseIndex], vectors: Vectors, share: float, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to a search of all of them, by their own scores, where they are few or the index is exhaustive. Where most
    are allowed, those of a search without a filter that are."""
    kind, index = opened
    monkeypatch.setattr("lightretriever.artifacts.dense.index._FEW", few)
    allowed = np.random.default_rng(11).random(COUNT) < share
    ordinals = np.flatnonzero(allowed)
    among = np.packbits(np.concatenate([allowed, np.zeros(24, np.bool_)]), bitorder="little")
    overlaps, usual = [], []
    for query in random_unit(50, seed=9):
        every = index.scores(query, ordinals)
        best = np.argsort(-index.scores(query, np.arange(COUNT)))[:10]
        usual.append(np.isin(index.search(query, 10)[0], best).mean())
        expected = ordinals[np.lexsort((ordinals, -every))][:10]
        found, scores = index.search(query, 10, among)
        assert found.size == expected.size
        assert allowed[found].all()
        np.testing.assert_array_equal(scores, index.scores(query, found))
        assert (np.diff(scores) <= 0).all()
        if (few and share < 0.5) or kind == "flat":
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(index.search(query, 1, among)[0], expected[:1])
        assert share == 1 or index.search(query, COUNT, among)[0].size == ordinals.size
        overlaps.append(np.isin(found, expected).mean() if expected.size else 1.0)
    # What an approximate index misses it misses without a filter too; but with one it must look further down.
    assert np.mean(overlaps) > np.mean(usual) - 0.2


def test_a_score_that_is_no_number_is_refused() -> None:
    with raises(ValueError):
        best_first(np.array([4, 9]), np.array([1.0, np.nan], np.float32), 2)


@pytest.mark.parametrize("factory", ["HNSW32,Flat", "SQ8", "IVF16,Flat", "IVF16,PQ8x4fs"])
def test_a_kind_that_is_not_built_is_not_opened(vectors: Vectors, tmp_path: Path, factory: str) -> None:
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "dense.faiss"))
    with raises(BundleError, naming="isn't searched"):
        DenseIndex.open(tmp_path / "dense.faiss")


@pytest.mark.parametrize("content", [None, b"", b"IxF", b"not an index, but long enough to be read as one" * 10, "cut"])
def test_what_is_no_index_is_named(written: Path, tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "dense.faiss"
    if content is not None:
        path.write_bytes(written.read_bytes()[:-100] if isinstance(content, str) else content)
    with raises(BundleError, naming="dense.faiss"):
        DenseIndex.open(path)


def test_a_full_disk_is_told_with_the_file(vectors: Vectors, tmp_path: Path) -> None:
    for kind in ("flat", "codes"):
        with full_disk(10_000), raises(BundleError, naming="dense.faiss"):
            write_dense_index(built(vectors, kind), tmp_path / "dense.faiss")


def test_an_index_of_another_metric_is_refused(tmp_path: Path) -> None:
    index = faiss.IndexFlatL2(DIMENSION)
    faiss.write_index(index, str(tmp_path / "l2"))
    with raises(BundleError):
        DenseIndex.open(tmp_path / "l2")
    with raises(BundleError, naming="dense.faiss"):
        write_dense_index(index, tmp_path / "no" / "dense.faiss")


D = 32
FIRST = 300


def flat(rows: npt.NDArray[np.float32]) -> DenseIndex:
    index = faiss.IndexFlatIP(D)
    index.add(rows)
    return DenseIndex(index)


def bits(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(chosen, bitorder="little")


def found_share(index: LaterIndex, whole: DenseIndex, k: int, chosen: npt.NDArray[np.bool_] | None = None) -> float:
    shares = []
    for query in random_unit(20, D, 7):
        ordinals, scores = index.search(query, k, None if chosen is None else bits(chosen))
        assert len(ordinals) == k
        assert chosen is None or chosen[ordinals].all()
        assert (np.diff(scores) <= 0).all()
        assert (scores == index.scores(query, ordinals)).all()
        expected, _ = whole.search(query, k, None if chosen is None else bits(chosen))
        shares.append(len(np.intersect1d(ordinals, expected)) / k)
    return float(np.mean(shares))


def test_few_later_vectors_give_the_scores_and_the_order_of_one_index() -> None:
    rows = random_unit(FIRST + 500, D, 1)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    before = writer.behind()
    writer.add(rows[FIRST:400])
    writer.add(rows[400:])
    assert not writer.encode()
    index, whole = writer.behind(), flat(rows)
    for query in random_unit(5, D, 2):
        for chosen in (None, np.arange(len(rows)) % 3 == 0):
            among = None if chosen is None else bits(chosen)
            one, two = (each.search(query, 50, among) for each in (index, whole))
            np.testing.assert_array_equal(one, two)
        assert before.search(query, 400)[0].max() < FIRST
    both = np.array([3, FIRST + 2, 700])
    assert (index.vectors(both) == rows[both]).all()
    assert (index.scores(rows[0], both) == whole.scores(rows[0], both)).all()
    for bad in (np.array([800]), np.array([-1])):
        with raises(ValueError):
            index.vectors(bad)


def test_many_later_vectors_get_codes_which_find_nearly_all() -> None:
    rows = random_unit(FIRST + 5 * MIN_CODED, D, 3)
    whole = flat(rows)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    made = []
    for part in np.split(rows[FIRST:], 40):
        writer.add(part)
        made.append(writer.encode())
        index = writer.behind()
    assert made[0] is False
    assert made.count(True) > 5
    assert (index.vectors(np.arange(len(rows))) == rows).all()
    assert found_share(index, whole, 10) > 0.9
    assert found_share(index, whole, 1000) > 0.98
    assert found_share(index, whole, 2000) > 0.99
    assert found_share(index, whole, 10, np.arange(len(rows)) % 10 != 0) > 0.9
    assert found_share(index, whole, 10, np.arange(len(rows)) % 50 == 0) == 1
    assert found_share(index, whole, 10, np.arange(len(rows)) % 3 == 0) > 0.9  # a third has more than are all scored
    assert found_share(index, whole, 10, np.arange(len(rows)) < FIRST) == 1
    assert found_share(index, whole, 10, np.arange(len(rows)) > len(rows) - 2_500) == 1  # in the last codes and behind


def test_documents_that_came_after_a_filter_are_not_found_with_it() -> None:
    rows = random_unit(FIRST + 3 * MIN_CODED, D, 6)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    writer.add(rows[FIRST:])
    writer.encode()
    known = np.ones(FIRST + 1_001, np.bool_)
    among = np.pad(bits(known), (0, -len(bits(known)) % 8))
    for index in (writer.behind(), writer.behind(among)):
        ordinals, _ = index.search(rows[-1], 900, among)
        assert len(ordinals) == 900
        assert ordinals.max() < len(known)
    assert writer.behind(among).search(rows[-1], 900)[0].max() < len(known)


def test_a_query_like_later_vectors_alone_finds_as_many_of_them_as_are_wanted() -> None:
    near = random_unit(1, D, 8) + 0.5 * random_unit(3_000, D, 9)
    rows = np.concatenate([random_unit(20 * FIRST, D, 1), unit(near)])
    writer = LaterIndexWriter(flat(rows[: 20 * FIRST]))
    writer.add(rows[20 * FIRST :])
    assert writer.encode()
    ordinals, _ = writer.behind().search(rows[-1], 400)
    expected, _ = flat(rows).search(rows[-1], 400)
    assert expected.min() >= 20 * FIRST
    assert len(np.intersect1d(ordinals, expected)) > 0.95 * 400


def test_codes_that_are_made_beside_a_write_are_those_of_their_vectors() -> None:
    rows = random_unit(FIRST + 2 * MIN_CODED - 100, D, 5)
    writer = LaterIndexWriter(flat(rows[:FIRST]))
    writer.add(rows[FIRST : FIRST + MIN_CODED])
    assert writer.encode()
    writer.add(rows[FIRST + MIN_CODED : -7])
    before = writer.behind()
    assert writer.encode()
    writer.add(rows[-7:])
    index = writer.behind()
    assert not writer.encode()
    assert (index.vectors(np.arange(len(rows))) == rows).all()
    assert (before.vectors(np.arange(len(rows) - 7)) == rows[:-7]).all()
