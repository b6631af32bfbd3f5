"""Arrays in files of their own, and what goes wrong when one is read."""

import io
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = ["UNREADABLE", "read_array", "write_array"]

UNREADABLE: Final = (OSError, EOFError, ValueError, SyntaxError, TokenError)
"""The errors of `numpy.load` for a file that is no whole array. It parses the header as Python, hence the last two."""


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array of any shape as `.npy`, atomically."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())


def read_array(path: Path) -> npt.NDArray[Any]:
    """Read an array that `write_array` wrote. Raises ResumeError when it is missing or damaged."""
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except UNREADABLE as error:
        raise ResumeError(
            f"{path}: can't be read: {error}.", remedy="Delete it and run the stage that makes it again."
        ) from error
    return array
