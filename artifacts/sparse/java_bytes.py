"""How data crosses between Python and Java: little-endian arrays and strict UTF-8, as bytearrays (see jvm.py)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Int64Array
from lightretriever.artifacts.sparse.jvm import JavaObject

__all__ = [
    "from_java",
    "pack_floats",
    "pack_ints",
    "pack_text",
    "pack_texts",
    "unpack_hits",
    "unpack_parts",
    "unpack_texts",
    "utf8",
]


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


def pack_texts(texts: Sequence[bytes]) -> tuple[bytearray, bytearray]:
    """n texts one after the other, and n int32: where each one ends."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return bytearray().join(texts), pack_ints(ends)


def from_java(packed: JavaObject) -> bytes:
    """A byte[] that pyjnius returned."""
    return bytes(packed.tostring())


def unpack_counts(packed: bytes) -> list[tuple[str, int]]:
    """n texts, each with an int32, that are packed as n, the numbers, and the texts."""
    size, *_ = np.frombuffer(packed, dtype="<i4", count=1).tolist()
    numbers = np.frombuffer(packed, dtype="<i4", count=size, offset=4).tolist()
    texts = [text.decode() for text in unpack_texts(packed[4 + 4 * size :], size)]
    return list(zip(texts, numbers, strict=True))


def unpack_hits(packed: bytes) -> tuple[Int64Array, Float32Array]:
    """m int32 ordinals and m float32 scores, as Java's TermSearch.best packs them."""
    count = len(packed) // 8
    ordinals = np.frombuffer(packed, dtype="<i4", count=count).astype(np.int64)
    scores = np.frombuffer(packed, dtype="<f4", count=count, offset=4 * count).astype(np.float32)
    return ordinals, scores


def unpack_texts(packed: bytes, count: int) -> list[bytes]:
    """`count` int32 lengths and as many texts, as Java's Packed.parts packs them."""
    lengths = np.frombuffer(packed, dtype="<i4", count=count)
    ends: Sequence[int] = (4 * count + np.cumsum(lengths, dtype=np.int64)).tolist()
    starts = [4 * count, *ends[:-1]]
    return [packed[start:end] for start, end in zip(starts, ends, strict=False)]


def unpack_parts(packed: bytes) -> list[bytes]:
    """One int32, how many parts there are, and the parts as `unpack_texts` reads them."""
    (count,) = np.frombuffer(packed, dtype="<i4", count=1).tolist()
    return unpack_texts(packed[4:], count)
