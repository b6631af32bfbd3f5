"""Lists are chosen by how far their documents lie towards a query, not by their centres alone."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from lightretriever.artifacts import kernels
from lightretriever.artifacts.dense.build import BuiltIndex, build_dense_index, check_factory, write_dense_index
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.list_spread import ListSpreads, lists_of, measure_spreads
from lightretriever.artifacts.dense.query_aware import asked_factory
from lightretriever.artifacts.dense.tuning import choose_parameters
from lightretriever.artifacts.errors import BundleError, DiskError, RecipeError

from tests.support.vectors import unit

Floats = npt.NDArray[np.float32]
DIMENSION, COUNT, LISTS = 48, 8000, 40
SWIG: Any = faiss  # its type stubs lack some of these
FACTORY = f"Queries,IVF{LISTS},PQ24x4fsr,Refine(SQ8)"


@pytest.fixture(scope="module")
def vectors() -> Floats:
    """Groups that are long in a direction of their own, and narrow in all others."""
    random = np.random.default_rng(3)
    centres, axes = random.standard_normal((LISTS, DIMENSION)), unit(random.standard_normal((LISTS, DIMENSION)))
    group = random.integers(LISTS, size=COUNT)
    along = 2 * random.standard_normal((COUNT, 1)) * axes[group]
    return unit(centres[group] + along + 0.2 * random.standard_normal((COUNT, DIMENSION)))


@pytest.fixture(scope="module")
def queries() -> Floats:
    return unit(np.random.default_rng(4).standard_normal((400, DIMENSION)))


@pytest.fixture(scope="module")
def built(vectors: Floats, queries: Floats) -> BuiltIndex:
    return build_dense_index(vectors, FACTORY, queries[::2])


ORDER = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]


def packed(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Codes (n, C) below 16 in blocks of 32 documents, as Faiss packs them."""
    count, parts = codes.shape
    full = np.zeros((-(-count // 32) * 32, parts + parts % 2), np.uint8)
    full[:count, :parts] = codes
    blocks = full.reshape(-1, 2, 16, full.shape[1])[:, :, ORDER]  # (blocks, half, 16, C)
    return np.ascontiguousarray((blocks[:, 0] | blocks[:, 1] << 4).transpose(0, 2, 1)).ravel()


class Given:
    """Lists of random documents, and what must be found in them."""

    def __init__(
        self, sizes: list[int], *, mapped: int, parts: int, width: int, along: int = 2, size: int = 24
    ) -> None:
        random = np.random.default_rng(5)
        count, total = len(sizes), sum(sizes)
        self.codes = random.integers(16, size=(total, parts)).astype(np.uint8)
        self.ordinals = random.permutation(total).astype(np.int64)
        self.lists = np.repeat(np.arange(count), sizes)
        self.blocks = [packed(self.codes[self.lists == number]) for number in range(count)]
        starts = np.cumsum([0, *sizes[:-1]])
        self.parts: dict[str, Any] = {
            "mapping": random.standard_normal((mapped, size)).astype(np.float32),
            "centres": random.standard_normal((count, mapped)).astype(np.float32),
            "codebooks": random.standard_normal((parts, 16, mapped // parts)).astype(np.float32),
            "places": random.permutation(mapped)[:width],
            "directions": random.integers(-127, 128, size=(count, along, width)).astype(np.int8),
            "scales": random.random(count).astype(np.float32) / 127,
            "others": random.random(count).astype(np.float32),
            "codes": np.array([block.ctypes.data for block in self.blocks], np.uint64),
            "ordinals": np.array([self.ordinals.ctypes.data + 8 * start for start in starts], np.uint64),
            "sizes": np.array(sizes, np.int64),
        }
        self.searched = kernels.Lists(**self.parts)
        self.scored = kernels.ByteCodes(
            random.integers(256, size=(total, size)).astype(np.uint8),
            np.zeros(size, np.float32),
            np.ones(size, np.float32),
        )

    def find(
        self,
        query: Floats,
        probes: int,
        spread: float,
        candidates: int,
        among: npt.NDArray[np.uint8] | None = None,
    ) -> npt.NDArray[np.int64]:
        """All candidates."""
        found, scores = self.searched.search(query, 10**6, candidates, probes, spread, among, self.scored)
        np.testing.assert_array_equal(scores, self.scored.scores(query, found))
        assert (np.diff(scores) <= 0).all()
        return found

    def ranked(self, query: Floats, spread: float) -> npt.NDArray[np.int64]:
        """The lists, the best first."""
        asked = self.parts["mapping"] @ query
        main = self.parts["directions"] * self.parts["scales"][:, None, None]
        along = np.einsum("lrw,w->lr", main, asked[self.parts["places"]])
        deviations = np.sqrt((along**2).sum(axis=1) + self.parts["others"] * (asked @ asked))
        ranked: npt.NDArray[np.int64] = np.argsort(-(self.parts["centres"] @ asked + spread * deviations))
        return ranked

    def scores(self, query: Floats) -> Floats:
        """Of all documents, by ordinal."""
        asked = self.parts["mapping"] @ query
        books = self.parts["codebooks"]
        tables = np.einsum("cvi,ci->cv", books, asked.reshape(len(books), -1))
        rows = (self.parts["centres"] @ asked)[self.lists] + tables[np.arange(len(books)), self.codes].sum(axis=1)
        by_ordinal: Floats = np.empty_like(rows)
        by_ordinal[self.ordinals] = rows
        return by_ordinal


SHAPES = [(64, 32, 20, 2), (20, 5, 9, 2), (6, 3, 6, 1), (33, 11, 0, 0), (34, 17, 34, 4)]


@pytest.mark.parametrize(("mapped", "parts", "width", "along"), SHAPES)
def test_the_best_by_their_codes_are_found(mapped: int, parts: int, width: int, along: int) -> None:
    given = Given([100, 32, 0, 1, 331, 64, 33], mapped=mapped, parts=parts, width=width, along=along)
    for query in np.random.default_rng(6).standard_normal((20, 24)).astype(np.float32):
        scores = given.scores(query)
        found = given.find(query, 7, 2.0, 50)
        assert np.unique(found).size == found.size
        assert 50 <= found.size < 70
        # Tables are rounded to 255 steps: a sum is off by half a step for each part, and one for the centre.
        step = np.ptp(scores) / 255
        assert scores[found].min() > np.sort(scores)[-50] - 3 * step
        assert np.intersect1d(found, np.argsort(-scores)[:40]).size >= 38


def test_lists_are_asked_by_product_and_spread() -> None:
    sizes = [40] * 50
    given = Given(sizes, mapped=32, parts=16, width=12)
    for query in np.random.default_rng(7).standard_normal((10, 24)).astype(np.float32):
        for spread in (0.0, 1.5):
            ranked = given.ranked(query, spread)
            found = given.find(query, 8, spread, 2000)
            looked_into = np.unique(given.lists[np.argsort(given.ordinals)][found])
            assert found.size == 8 * 40
            # Directions are bytes: the eighth and the ninth may change places.
            assert np.intersect1d(looked_into, ranked[:8]).size >= 7
            assert np.isin(looked_into, ranked[:10]).all()


def test_only_what_is_among_the_allowed() -> None:
    given = Given([100, 32, 0, 1, 331, 64, 33], mapped=20, parts=10, width=9)
    allowed = np.random.default_rng(8).random(561) < 0.2
    among = np.packbits(allowed, bitorder="little")
    query = np.random.default_rng(9).standard_normal(24).astype(np.float32)
    scores = np.where(allowed, given.scores(query), -np.inf)
    found = given.find(query, 7, 2.0, 30, among)
    assert allowed[found].all()
    assert np.intersect1d(found, np.argsort(-scores)[:25]).size >= 23
    assert sorted(given.find(query, 7, 2.0, 561, among)) == np.flatnonzero(allowed).tolist()
    with pytest.raises(ValueError, match="a bit for every document"):
        given.find(query, 7, 2.0, 30, among[:-1])


def test_more_than_there_is_and_a_query_of_zeros() -> None:
    given = Given([5, 0, 70], mapped=20, parts=10, width=9)
    zeros = np.zeros(24, np.float32)
    assert sorted(given.find(zeros, 9, 2.0, 1000)) == list(range(75))
    assert given.find(zeros, 3, 2.0, 10).size == 75  # all are as good as the tenth
    assert given.find(zeros, 0, 2.0, 10).size == 0
    assert given.find(zeros, 1, 2.0, 10).size == 5  # all alike: the first list
    with pytest.raises(ValueError, match="at least one"):
        given.find(zeros, 3, 2.0, 0)
    with pytest.raises(ValueError, match="dimension"):
        given.find(zeros[:-1], 3, 2.0, 10)
    narrow = kernels.ByteCodes(np.zeros((75, 23), np.uint8), np.zeros(23, np.float32), np.ones(23, np.float32))
    with pytest.raises(ValueError, match="dimension"):
        given.searched.search(zeros, 5, 10, 3, 2.0, None, narrow)
    given.ordinals[3] = 75
    with pytest.raises(ValueError, match=r"document 75 is outside 0..74"):
        given.find(zeros, 3, 2.0, 10)
    everything = np.full(10, 255, np.uint8)
    assert given.find(zeros, 3, 2.0, 100, everything).size == 74


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("centres", np.zeros((5, 19), np.float32), "the same m"),
        ("codebooks", np.zeros((9, 16, 2), np.float32), "sixteen values for each part"),
        ("codebooks", np.zeros((10, 8, 2), np.float32), "sixteen values for each part"),
        ("codebooks", np.zeros((10, 16), np.float32), "codebooks"),
        ("codebooks", np.zeros((0, 16, 2), np.float32), "sixteen values for each part"),
        ("places", np.arange(8), "w places"),
        ("places", np.array([0, 1, 2, 3, 4, 5, 6, 7, 20]), "place 20 is outside 0..19"),
        ("places", np.array([0, 1, 2, 3, 4, 5, 6, 7, -1]), "place -1 is outside 0..19"),
        ("directions", np.zeros((4, 2, 9), np.int8), "every list"),
        ("directions", np.zeros((5, 9), np.int8), "directions"),
        ("scales", np.zeros(6, np.float32), "every list"),
        ("others", np.zeros(1, np.float32), "every list"),
        ("others", np.array([0, 1, np.nan, 1, 1], np.float32), "the spread of list 2 is none"),
        ("others", np.array([0, 1, 1, -1, 1], np.float32), "the spread of list 3 is none"),
        ("scales", np.array([np.inf, 1, 1, 1, 1], np.float32), "the spread of list 0 is none"),
        ("codes", np.zeros(4, np.uint64), "every list"),
        ("ordinals", np.zeros(4, np.uint64), "every list"),
        ("sizes", np.zeros(6, np.int64), "every list"),
        ("sizes", np.array([1, 1, -1, 1, 1]), "a list has -1 documents"),
    ],
)
def test_parts_that_do_not_fit(name: str, value: npt.NDArray[Any], message: str) -> None:
    parts = Given([1] * 5, mapped=20, parts=10, width=9).parts
    with pytest.raises(ValueError, match=message):
        kernels.Lists(**{**parts, name: value})


def test_vectors_are_not_too_long_for_whole_numbers() -> None:
    with pytest.raises(ValueError, match="m is at most 4096"):
        Given([1] * 5, mapped=4112, parts=16, width=9)


def test_spreads_are_those_of_the_documents() -> None:
    random = np.random.default_rng(7)
    centres = random.standard_normal((3, 12)).astype(np.float32)
    number = random.integers(2, size=900)  # the third list is empty
    length = np.array([3.0, 1.0, 0.1, 0.1, *[0.1] * 8])
    documents = (centres[number] + random.standard_normal((900, 12)) * length).astype(np.float32)
    chunks = (documents[start : start + 250] for start in range(0, 900, 250))
    spreads = measure_spreads(chunks, number, centres, np.arange(8))
    assert spreads.directions.shape == (3, 2, 8)
    for row in range(2):
        differences = documents[number == row] - centres[row]
        for query in random.standard_normal((20, 12)):
            query[8:] = 0
            exact = ((differences @ query) ** 2).mean()
            parts = (spreads.directions[row] * spreads.scales[row]) @ query[:8]
            assert (parts**2).sum() + spreads.others[row] * (query @ query) == pytest.approx(exact, rel=0.1, abs=0.05)
    assert not spreads.directions[2].any()
    assert spreads.scales[2] == spreads.others[2] == 0


def test_every_document_is_in_the_list_that_holds_it(built: BuiltIndex, vectors: Floats) -> None:
    inverted: Any = faiss.extract_index_ivf(faiss.downcast_index(built.index.base_index))
    found = lists_of(inverted, COUNT)
    assert [inverted.invlists.list_size(number) for number in range(LISTS)] == np.bincount(found).tolist()


def found_by(built: BuiltIndex, vectors: Floats, queries: Floats, nprobe: int) -> float:
    index = DenseIndex(*built)
    faiss.ParameterSpace().set_index_parameter(built.index, "nprobe", nprobe)
    faiss.ParameterSpace().set_index_parameter(built.index, "k_factor_rf", 8)
    truth = np.argsort(-(queries @ vectors.T), axis=1)[:, :20]
    return sum(
        np.intersect1d(index.search(query, 20)[0], row).size for query, row in zip(queries, truth, strict=True)
    ) / (20 * len(queries))


def test_fewer_lists_hold_the_best_documents(built: BuiltIndex, vectors: Floats, queries: Floats) -> None:
    assert built.spreads is not None
    with_spreads = found_by(built, vectors, queries[1::2], 6)
    assert with_spreads > found_by(BuiltIndex(built.index), vectors, queries[1::2], 6) + 0.03


def test_all_lists_hold_the_same_either_way(built: BuiltIndex, queries: Floats) -> None:
    """Faiss rounds its tables in another way, so that some candidates differ, but hardly one of the best."""
    for name, value in {"nprobe": LISTS, "k_factor_rf": 8}.items():
        faiss.ParameterSpace().set_index_parameter(built.index, name, value)
    plain, chosen = DenseIndex(built.index), DenseIndex(*built)
    shared = [np.intersect1d(chosen.search(q, 30)[0], plain.search(q, 30)[0]).size for q in queries[1:40:2]]
    assert np.mean(shared) > 29.5


def test_filters_hold(built: BuiltIndex, queries: Floats) -> None:
    allowed = np.arange(COUNT) % 2 == 0
    faiss.ParameterSpace().set_index_parameter(built.index, "nprobe", 8)
    for few in (0, COUNT):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lightretriever.artifacts.dense.index._FEW", few)
            found, _ = DenseIndex(*built).search(queries[0], 30, np.packbits(allowed, bitorder="little"))
        assert found.size == 30
        assert allowed[found].all()


def test_written_and_read(built: BuiltIndex, queries: Floats, tmp_path: Path) -> None:
    assert built.spreads is not None
    write_dense_index(built, tmp_path / "dense.faiss", tmp_path / "spreads.npz")
    setting = {"nprobe": 8, "k_factor_rf": 2}
    again = DenseIndex.open(tmp_path / "dense.faiss", setting, tmp_path / "spreads.npz")
    for name, value in setting.items():
        faiss.ParameterSpace().set_index_parameter(built.index, name, value)
    for ours, theirs in zip(again.search(queries[1], 40), DenseIndex(*built).search(queries[1], 40), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    built.spreads.write(tmp_path / "twice.npz")
    assert (tmp_path / "twice.npz").read_bytes() == (tmp_path / "spreads.npz").read_bytes()


def test_files_that_are_no_spreads(built: BuiltIndex, vectors: Floats, tmp_path: Path) -> None:
    assert built.spreads is not None
    file = tmp_path / "spreads.npz"
    for content in (b"", b"no archive", b"PK\x03\x04 broken"):
        file.write_bytes(content)
        with pytest.raises(BundleError, match=r"spreads.npz: the spreads of the lists can't be read"):
            ListSpreads.read(file)
    with pytest.raises(BundleError, match="can't be read"):
        ListSpreads.read(tmp_path / "none.npz")
    np.savez(file, places=np.zeros(0, np.int64))
    np.save(tmp_path / "one.npy", np.zeros(3))
    for other in (file, tmp_path / "one.npy"):
        with pytest.raises(BundleError, match="can't be read"):
            ListSpreads.read(other)
    with pytest.raises(DiskError, match="can't be written"):
        built.spreads.write(tmp_path / "no" / "spreads.npz")
    for name, value, found in (
        ("places", np.zeros(3, np.int32), r"int32 of shape \(3,\)"),
        ("directions", np.zeros((5, 4), np.int8), r"int8 of shape \(5, 4\)"),
        ("directions", np.zeros((5, 4, 3), np.int8, order="F"), r"int8 of shape \(5, 4, 3\)"),
        ("others", np.zeros(3), r"float64 of shape \(3,\)"),
    ):
        ListSpreads(**{**built.spreads._asdict(), name: value}).write(file)
        with pytest.raises(BundleError, match=f"spreads.npz: {name} must be .* found {found}"):
            ListSpreads.read(file)


def test_every_bit_of_the_file_that_is_flipped_is_no_other_error(built: BuiltIndex, tmp_path: Path) -> None:
    assert built.spreads is not None
    file = tmp_path / "spreads.npz"
    built.spreads.write(file)
    sound = file.read_bytes()
    whole = np.random.default_rng(10).integers(8 * len(sound), size=300)
    for bit in (*range(1600), *range(8 * len(sound) - 2400, 8 * len(sound)), *whole):
        content = bytearray(sound)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        with suppress(BundleError):
            ListSpreads.read(file)


def test_spreads_of_another_index(built: BuiltIndex, vectors: Floats, queries: Floats, tmp_path: Path) -> None:
    assert built.spreads is not None
    shorter = built.spreads._replace(scales=built.spreads.scales[:-1])
    with pytest.raises(BundleError, match="don't fit the dense index: every list"):
        DenseIndex(built.index, shorter)
    with pytest.raises(BundleError, match="don't fit the dense index: it is no index laid out by queries"):
        DenseIndex(build_dense_index(vectors, "IVF16,PQ8x4fs,Refine(SQ8)").index, built.spreads)
    with pytest.raises(BundleError, match="no 8-bit codes"):
        DenseIndex(build_dense_index(vectors, "SQ8").index, built.spreads)
    with pytest.raises(BundleError, match="no 8-bit codes"):
        DenseIndex(build_dense_index(vectors, "IVF16,PQ8x4fs,Refine(Flat)").index, built.spreads)
    write_dense_index(built, tmp_path / "dense.faiss")
    shorter.write(tmp_path / "spreads.npz")
    with pytest.raises(BundleError, match=r"spreads.npz: the spreads of the lists don't fit"):
        DenseIndex.open(tmp_path / "dense.faiss", None, tmp_path / "spreads.npz")
    queries = queries.copy()
    queries[0] = 1e38
    with pytest.raises(ValueError, match="no number"):
        DenseIndex(*built).search(queries[0], 5)


@pytest.mark.parametrize(
    "others",
    [
        SWIG.BlockInvertedLists(LISTS, 32, 1),
        SWIG.BlockInvertedLists(LISTS, 64, 32 * 12),
        SWIG.ArrayInvertedLists(LISTS, 12),
    ],
    ids=["bytes", "documents", "one by one"],
)
def test_blocks_of_another_size(vectors: Floats, queries: Floats, tmp_path: Path, others: Any) -> None:
    """Such a file may hold fewer bytes than would be read of it."""
    built = build_dense_index(vectors, FACTORY, queries)
    inverted: Any = faiss.extract_index_ivf(faiss.downcast_index(built.index.base_index))
    held: Any = faiss.downcast_InvertedLists(inverted.invlists)
    for number in range(inverted.nlist):
        others.resize(number, held.list_size(number))
    inverted.replace_invlists(others, False)
    write_dense_index(built, tmp_path / "dense.faiss", tmp_path / "spreads.npz")
    with pytest.raises(BundleError, match=r"spreads.npz: the spreads of the lists don't fit .* (a block|one by one)"):
        DenseIndex.open(tmp_path / "dense.faiss", None, tmp_path / "spreads.npz")


def test_fewer_codes_than_documents(built: BuiltIndex, vectors: Floats, queries: Floats) -> None:
    other = build_dense_index(vectors, FACTORY, queries)
    other.index.ntotal += 1
    with pytest.raises(BundleError, match=f"has {len(vectors) + 1} documents, but it has codes of {len(vectors)}"):
        DenseIndex(*other)


def test_lists_without_documents(tmp_path: Path) -> None:
    """Of few different documents come few clusters."""
    random = np.random.default_rng(11)
    documents = unit(random.standard_normal((3, 32)))[random.integers(3, size=900)]
    asked = unit(random.standard_normal((40, 32)))
    few = build_dense_index(documents, "Queries,IVF8,PQ16x4fsr,Refine(SQ8)", asked)
    inverted: Any = faiss.extract_index_ivf(faiss.downcast_index(few.index.base_index))
    assert 0 in [inverted.invlists.list_size(number) for number in range(8)]
    parameters, found = choose_parameters(few, documents, asked)
    assert found is not None
    write_dense_index(few, tmp_path / "dense.faiss", tmp_path / "spreads.npz")
    index = DenseIndex.open(tmp_path / "dense.faiss", parameters, tmp_path / "spreads.npz")
    assert index.search(asked[0], 900)[0].size > 200


@pytest.mark.parametrize(("dimension", "parts"), [(16, 2), (600, 256)])
def test_few_dimensions_and_many(dimension: int, parts: int) -> None:
    random = np.random.default_rng(12)
    documents, asked = (unit(random.standard_normal((count, dimension))) for count in (800, 60))
    assert asked_factory(documents, asked, 4) == f"Queries,IVF4,PQ{max(parts, 8)}x4fsr,Refine(SQ8)"
    built = build_dense_index(documents, f"Queries,IVF4,PQ{parts}x4fsr,Refine(SQ8)", asked)
    parameters, found = choose_parameters(built, documents, asked)
    _, by_faiss = choose_parameters(BuiltIndex(built.index), documents, asked)
    assert found is not None
    assert by_faiss is not None
    assert found >= by_faiss - 0.02  # half of the lists at most are looked into
    assert sorted(parameters) == ["k_factor_rf", "nprobe"]
    with pytest.raises(RecipeError, match=f"m at most {min(dimension // 2, 256)}"):
        check_factory(f"Queries,IVF4,PQ{min(dimension // 2, 256) + 1}x4fsr,Refine(SQ8)", dimension)
