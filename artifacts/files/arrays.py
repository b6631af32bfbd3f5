"""Arrays in files of their own, and what goes wrong when one is read."""

import os
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from lightretriever.artifacts.errors import BundleError, ResumeError
from lightretriever.artifacts.files.atomic import new_file

UNREADABLE: Final = (OSError, EOFError, ValueError, SyntaxError, TokenError)
"""The errors of `load_npy` for a file that is no whole array. NumPy parses the header as Python, hence the last two."""


def load_npy(path: Path) -> npt.NDArray[Any]:
    """Map the array of any shape and number type in a `.npy` file. The only way here from a file to an array:
    `numpy.load` gives an archive as something else than an array, and advises to load pickles unsafely. Raises one of
    `UNREADABLE`: ValueError for what is no `.npy`, and for Python objects."""
    try:
        # A view of the map: indexing a memmap itself costs several times as much.
        return np.asarray(npy.open_memmap(path, mode="r"))
    except ValueError as error:
        raise ValueError(f"{error}: save one array of numbers with numpy.save") from error


def load_part(path: Path, remedy: str) -> npt.NDArray[Any]:
    """The array of a part of a bundle, as `load_npy` reads it. Raises BundleError with the remedy."""
    try:
        return load_npy(path)
    except FileNotFoundError as error:
        raise BundleError(f"{path}: the file is missing.", remedy=remedy) from error
    except UNREADABLE as error:
        raise BundleError(f"{path}: not a NumPy array: {error}.", remedy=remedy) from error


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array of any shape as `.npy`, atomically."""
    with new_file(path) as file:
        np.save(file, array, allow_pickle=False)


def new_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Map a new `.npy` file of zeros, to be written to. All of its room is taken at once: on a full disk that is an
    OSError, where writing to the map would end the process."""
    array = npy.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def read_array(path: Path) -> npt.NDArray[Any]:
    """Map an array that `write_array` wrote. Raises ResumeError when it is missing or damaged."""
    try:
        return load_npy(path)
    except UNREADABLE as error:
        raise ResumeError(
            f"{path}: can't be read: {error}.", remedy="Delete it and run the stage that makes it again."
        ) from error
