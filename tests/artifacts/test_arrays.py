"""A file that is no array is an error that names it, and is never run."""

import io
import pickle
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.errors import BundleError, ResumeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy, new_array, read_array
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import HeadQueries, TokenTable
from tests.support.wordings import raises

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
