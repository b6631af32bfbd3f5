"""Token tables: what is written comes back, memory-mapped, within the bounds of the number type."""

import io
import pickle
from collections import Counter
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lightretriever.artifacts.errors import BundleError, ResumeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy, new_array, read_array
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import (
    HeadQueries,
    TableDtype,
    TokenTable,
    count_each,
    scale_path,
    write_table,
)
from tests.support.machine import mapped_bytes
from tests.support.wordings import raises

DTYPES: tuple[TableDtype, ...] = ("float16", "float32", "int8")
TINY = float(np.finfo(np.float32).tiny)


def rows_of(count: int = 300, dimension: int = 24, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.0), ("float16", 2e-3), ("int8", 3e-2)])
def test_rows_come_back(tmp_path: Path, dtype: TableDtype, tolerance: float) -> None:
    rows = rows_of(count=8192 * 2 + 5, dimension=3)  # more than two chunks
    write_table(tmp_path / "t.npy", rows, dtype)
    table = TokenTable.open(tmp_path / "t.npy")
    assert (table.shape, table.dtype) == (rows.shape, dtype)
    assert len(list(tmp_path.iterdir())) == (2 if dtype == "int8" else 1)
    ids = np.append(np.arange(len(rows)), [5, 5]).astype(np.int32)
    found = table.rows(ids)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, rows[ids], atol=tolerance)


@given(
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.floats(-(2.0**120), 2.0**120, width=32, allow_subnormal=True),
    )
)
def test_int8_is_off_by_at_most_half_a_scale(
    tmp_path_factory: pytest.TempPathFactory, rows: npt.NDArray[np.float32]
) -> None:
    """So that rows of zeros, the first ones that Hypothesis tries, stay what they are."""
    path = tmp_path_factory.mktemp("int8") / "t.npy"
    write_table(path, rows, "int8")
    scales = np.load(scale_path(path)).astype(np.float64)
    found = np.load(path).astype(np.float64) * scales[:, None]
    slack = 1 + 1e-4  # the division by the scale is rounded to float32 before it is rounded to an integer
    assert (np.abs(found - rows) <= scales[:, None] / 2 * slack).all()
    assert (scales >= TINY).all()


def test_opening_maps_the_file_and_loads_only_what_is_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "large.npy"
    table_bytes = 64 << 20
    with path.open("wb") as file:  # a sparse file: a header, and then nothing but a hole
        header = {"descr": "<f4", "fortran_order": False, "shape": (table_bytes // 4096, 1024)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + table_bytes)
    table = TokenTable.open(path)
    assert not table.rows(np.array([0, 9_000])).any()
    size, resident = mapped_bytes(path)
    assert size >= table_bytes
    assert resident < table_bytes / 8


@pytest.fixture(scope="module", params=DTYPES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TokenTable:
    path = tmp_path_factory.mktemp("table") / "t.npy"
    write_table(path, rows_of(), request.param)
    return TokenTable.open(path)


@given(queries=st.lists(st.lists(st.integers(0, 299), max_size=9), max_size=7))
def test_a_query_is_the_direction_of_its_weighted_rows_alone_and_among_others(
    table: TokenTable, queries: list[list[int]]
) -> None:
    ids = np.array([number for query in queries for number in query], np.int32)
    bounds, distinct, counts = count_each(ids, np.array([len(query) for query in queries], np.int64))
    weights = counts.astype(np.float32)
    vectors, norms = table.directions(bounds, distinct, weights)
    assert (vectors.shape, vectors.dtype.name, norms.dtype.name) == ((len(queries), 24), "float32", "float64")
    for number, query in enumerate(queries):
        own = slice(bounds[number], bounds[number + 1])
        assert list(zip(distinct[own].tolist(), counts[own].tolist(), strict=True)) == sorted(Counter(query).items())
        vector, norm = table.direction(distinct[own], weights[own])
        assert (vectors[number].tobytes(), norms[number]) == (vector.tobytes(), norm)
        expected = table.rows(distinct[own]).astype(np.float64).T @ counts[own]
        assert norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)
        np.testing.assert_allclose(vector * norm, expected, atol=1e-5)


@pytest.mark.parametrize(("factor", "rest"), [(1.0, 0.0), (3e38, np.inf)])
def test_a_sum_without_a_direction_has_a_norm_that_says_so(table: TokenTable, factor: float, rest: float) -> None:
    weights = np.array([factor, -factor if rest == 0 else factor], np.float32)
    assert table.direction(np.array([5, 5], np.int32), weights)[1] == rest


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_a_number_type_lacks_are_refused(tmp_path: Path, dtype: TableDtype, value: float) -> None:
    rows = rows_of()
    rows[7, 3] = value
    if np.isfinite(value) and dtype != "float16":
        write_table(tmp_path / "t.npy", rows, dtype)
        return
    with raises(BundleError, naming="t.npy"):
        write_table(tmp_path / "t.npy", rows, dtype)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    """Another shape, number type, order of columns or bytes; a cut or missing file, and scales that don't fit."""
    path = tmp_path / "t.npy"
    with raises(BundleError, naming="t.npy"):
        TokenTable.open(path)
    shapes = [np.ones(shape, np.float32) for shape in ((5,), (0, 4), (4, 0), (2, 2, 2))]
    for rows in shapes:
        with raises(BundleError, naming="t.npy"):
            write_table(path, rows, "float32")
    others: list[Any] = [*shapes, np.ones((3, 4)), np.asfortranarray(rows_of()), rows_of().astype(">f4")]
    for other in others:
        np.save(path, other)
        with raises(BundleError, naming="t.npy"):
            TokenTable.open(path)
    write_table(path, rows_of(), "int8")
    content = path.read_bytes()
    for kept in (6, -100):
        path.write_bytes(content[:kept])
        with raises(BundleError, naming="t.npy"):
            TokenTable.open(path)
    path.write_bytes(content)
    np.save(scale_path(path), np.ones(299, dtype=np.float32))
    with raises(BundleError, naming="scale.npy"):
        TokenTable.open(path)
    scale_path(path).unlink()
    with raises(BundleError, naming="scale.npy"):
        TokenTable.open(path)


HEADERS = (
    *(b"{'descr': (" + bytes(40), b"{'descr': ''''<f4'", b"(1, 2", b"{'descr':\n  1\n 2}", b"\xff" * 20, b"1 +"),
)
"""Damaged ones. NumPy's own words for them depend on the version of Python."""


def with_header(header: bytes) -> bytes:
    padded = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(24)


def test_a_whole_array_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.npy").write_bytes(with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"))
    assert np.array_equal(read_array(tmp_path / "rows.npy"), np.zeros((3, 2), dtype=np.float32))


class Evil:
    """Writes a file where it is loaded as a pickle."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_what_is_no_array_is_told_and_never_loaded(tmp_path: Path) -> None:
    file, loaded = tmp_path / "rows.npy", tmp_path / "loaded"
    archive = io.BytesIO()
    np.savez(archive, rows=np.zeros((3, 2), np.float32))
    objects = io.BytesIO()
    np.save(objects, np.array([Evil(loaded)], dtype=object), allow_pickle=True)
    for content in (
        b"",
        b"PK\x05\x06" + bytes(18),
        archive.getvalue(),
        pickle.dumps(Evil(loaded)),
        objects.getvalue(),
        np.ones(6, np.float32).tobytes(),
        *map(with_header, HEADERS),
    ):
        file.write_bytes(content)
        with pytest.raises(UNREADABLE) as raised:
            load_npy(file)
        numpy_s = isinstance(raised.value, SyntaxError | TokenError)
        assert numpy_s or str(raised.value).endswith("save one array of numbers with numpy.save")
        for read in (TokenTable.open, partial(load_idf, vocab_size=3), read_array):
            with raises((BundleError, ResumeError), naming="rows.npy"):
                read(file)
        (tmp_path / "texts.json").write_text('["a"]')
        with raises(BundleError):
            HeadQueries.open(tmp_path / "texts.json", file, lowercase=True)
    assert not loaded.exists()


def test_a_new_array_has_its_room_on_the_disk_before_it_is_written_to(tmp_path: Path) -> None:
    array = new_array(tmp_path / "new.npy", np.int32, (100_000, 3))
    there = (tmp_path / "new.npy").stat()
    assert there.st_blocks * 512 >= there.st_size > array.nbytes  # else a full disk ends the process by SIGBUS
    array[-1] = 7
    assert load_npy(tmp_path / "new.npy").tolist()[-2:] == [[0, 0, 0], [7, 7, 7]]
    assert new_array(tmp_path / "none.npy", np.int32, (0, 3)).shape == (0, 3)
