"""How data crosses between Python and Java: little-endian arrays and strict UTF-8, as bytearrays (see jvm.py)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Int64Array


def pack_ints(values: npt.NDArray[Any]) -> bytearray:
    """Any integers that fit (the caller checks), of shape (n,), as n int32."""
    return bytearray(np.ascontiguousarray(values, dtype="<i4").data.cast("B"))


def pack_floats(values: npt.NDArray[Any]) -> bytearray:
    """Any floats of shape (n,), as n float32."""
    return bytearray(np.ascontiguousarray(values, dtype="<f4").data.cast("B"))


def utf8(name: str, texts: Iterable[str]) -> list[bytes]:
    """The UTF-8 bytes of each text. A lone surrogate, which has none, is a ValueError that calls its text by `name`."""
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        reason = f"{error.reason} at position {error.start}"
        raise ValueError(f"{name} {error.object!r} is not valid Unicode: {reason}.") from error


def pack_text(name: str, text: str) -> bytearray:
    """One text, for Java; `name` is what the error calls it."""
    return bytearray(*utf8(name, [text]))


def pack_texts(name: str, texts: Iterable[str]) -> bytearray:
    """Texts as `pack_parts` packs them; `name` is what the error calls one."""
    return pack_parts(utf8(name, texts))


def pack_parts(parts: Sequence[bytes]) -> bytearray:
    """Parts as Java's Strings has them: n, n int32 that say where each ends, and the parts one after the other."""
    ends = np.cumsum([len(parts), *map(len, parts)])
    ends[1:] -= len(parts)
    return bytearray().join((pack_ints(ends), *parts))


def unpack_ints(packed: bytes) -> Int64Array:
    """n int32."""
    return np.frombuffer(packed, "<i4").astype(np.int64)


def unpack_hits(packed: bytes) -> tuple[Int64Array, Float32Array]:
    """m int32 ordinals and m float32 scores."""
    half = len(packed) // 2
    return unpack_ints(packed[:half]), np.frombuffer(packed[half:], "<f4").astype(np.float32)


def unpack_parts(packed: bytes) -> list[bytes]:
    """The parts that Java's Strings packed, as `pack_parts` does."""
    (count,) = np.frombuffer(packed, "<i4", 1).tolist()
    first = 4 * (1 + count)
    ends = np.frombuffer(packed, "<i4", count, offset=4).tolist()
    return [packed[first + start : first + end] for start, end in pairwise([0, *ends])]


def unpack_texts(packed: bytes) -> list[str]:
    """The same of texts."""
    return [text.decode() for text in unpack_parts(packed)]


def unpack_counts(packed: bytes) -> list[tuple[str, int]]:
    """Texts, and behind them an int32 of each, in one part."""
    *texts, numbers = unpack_parts(packed)
    return list(zip([text.decode() for text in texts], unpack_ints(numbers).tolist(), strict=True))
