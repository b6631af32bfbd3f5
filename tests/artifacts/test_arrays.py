"""A damaged header of an array is an error like any other."""

from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.errors import BundleError, ResumeError
from lightretriever.artifacts.files.arrays import read_array
from lightretriever.artifacts.tokens.idf import load_idf
from lightretriever.artifacts.tokens.table import TokenTable

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
    write(header)
    with pytest.raises(BundleError, match=r"rows\.npy: not a NumPy array"):
        TokenTable.open(file)
    with pytest.raises(BundleError, match=r"rows\.npy: not a NumPy array"):
        load_idf(file, 3)
    with pytest.raises(ResumeError, match=r"rows\.npy: can't be read"):
        read_array(file)
