"""Damage done to single files of a bundle, drawn from a seed."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

__all__ = ["KINDS", "damage"]

Random = np.random.Generator


def _truncate(file: Path, other: Path, random: Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: random.integers(1, len(content))] if len(content) > 1 else b"")


def _flip(file: Path, other: Path, random: Random) -> None:
    content = bytearray(file.read_bytes())
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    file.write_bytes(content)


def _zero(file: Path, other: Path, random: Random) -> None:
    content = bytearray(file.read_bytes())
    size = int(random.integers(1, max(2, len(content) // 2)))
    start = int(random.integers(len(content)))
    content[start : start + size] = bytes(len(content[start : start + size]))
    file.write_bytes(content)


def _empty(file: Path, other: Path, random: Random) -> None:
    file.write_bytes(b"")


def _delete(file: Path, other: Path, random: Random) -> None:
    file.unlink()


def _append(file: Path, other: Path, random: Random) -> None:
    file.write_bytes(file.read_bytes() + random.bytes(int(random.integers(1, 4096))))


def _replace(file: Path, other: Path, random: Random) -> None:
    file.write_bytes(other.read_bytes())


KINDS: Final[dict[str, Callable[[Path, Path, Random], None]]] = {
    "truncated": _truncate,
    "a bit flipped": _flip,
    "a block zeroed": _zero,
    "emptied": _empty,
    "deleted": _delete,
    "appended to": _append,
    "of another bundle": _replace,
}
"""Every kind of damage, by what it does to the file."""


def damage(kind: str, file: Path, other: Path, random: Random) -> None:
    """Damage `file` in this way. `other` is the file of the same name in another bundle."""
    KINDS[kind](file, other, random)
