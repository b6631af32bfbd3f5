"""A damaged header of an array is an error like any other."""

import io
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.errors import BundleError, ResumeError
from lightretriever.artifacts.files.arrays import load_npy, read_array
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import TokenTable
from tests.support.wordings import raises

GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"


@pytest.mark.parametrize(
    "header",
    [b"{'descr': (" + bytes(40), b"{'descr': ''''<f4'", b"(1, 2", b"{'descr':\n  1\n 2}", b"\xff" * 20, b"1 +"],
)
def test_a_damaged_header_is_an_error_that_names_the_file(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "rows.npy"

    def write(content: bytes) -> None:
        padded = content.ljust(117) + b"\n"
        file.write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(24))

    write(GOOD)
    assert np.array_equal(read_array(file), np.zeros((3, 2), dtype=np.float32))
    write(header)  # NumPy's own words depend on the version of Python
    with pytest.raises(BundleError, match=r"rows\.npy: not a NumPy array"):
        TokenTable.open(file)
    with pytest.raises(BundleError, match=r"rows\.npy: not a NumPy array"):
        load_idf(file, 3)
    with pytest.raises(ResumeError, match=r"rows\.npy: can't be read"):
        read_array(file)


class Evil:
    """Writes a file where it is loaded as a pickle."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("mapped", [True, False])
def test_what_is_no_array_is_told_and_never_loaded(tmp_path: Path, mapped: bool) -> None:
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
    ):
        file.write_bytes(content)
        with raises(ValueError) as raised:
            load_npy(file, mapped=mapped)
        assert str(raised.value).endswith("save one array of numbers with numpy.save")
        for read in (TokenTable.open, partial(load_idf, vocab_size=3), read_array):
            with raises((BundleError, ResumeError)):
                read(file)
        (tmp_path / "texts.json").write_text('["a"]')
        with raises(BundleError):
            HeadQueries.open(tmp_path / "texts.json", file, lowercase=True)
    assert not loaded.exists()
