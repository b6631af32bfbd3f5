"""The texts of a training set, mapped into memory: the first process reads the corpus, all others share the pages.

FOLDER/texts.bin     the texts in UTF-8, one after the other
FOLDER/ids.bin       their ids, likewise
FOLDER/bounds.npy    (2, n + 1) int64: where each text and each id begins, and where the last one ends
FOLDER/keys.npy      (n,) uint64: hashes of the ids, ascending
FOLDER/order.npy     (n,) int64: the document of each key; written last
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np

from lightretriever.artifacts.files.arrays import load_npy, write_array
from lightretriever.artifacts.files.workdir import writing_atomically

__all__ = ["MappedTexts", "forget_texts", "text_key", "write_texts"]

_TEXTS, _IDS, _BOUNDS, _KEYS, _ORDER = "texts.bin", "ids.bin", "bounds.npy", "keys.npy", "order.npy"


class MappedTexts(Mapping[str, str]):
    """Texts by id, in the order of writing, as `write_texts` wrote them to a folder."""

    def __init__(self, folder: Path) -> None:
        self._texts, self._ids = _mapped(folder / _TEXTS), _mapped(folder / _IDS)
        self._bounds, self._keys, self._order = (load_npy(folder / name) for name in (_BOUNDS, _KEYS, _ORDER))

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return (self._id(number) for number in range(len(self)))

    def __getitem__(self, name: str) -> str:
        """The text of a document. Raises KeyError."""
        key = text_key(name)
        for place in range(int(np.searchsorted(self._keys, key)), len(self)):
            if self._keys[place] != key:
                break
            number = int(self._order[place])
            if self._id(number) == name:
                return self.text(number)
        raise KeyError(name)

    def text(self, number: int) -> str:
        """The text of a document by its place, from 0."""
        return self._part(self._texts, 0, number)

    def _id(self, number: int) -> str:
        return self._part(self._ids, 1, number)

    def _part(self, content: mmap.mmap | bytes, row: int, number: int) -> str:
        return content[int(self._bounds[row, number]) : int(self._bounds[row, number + 1])].decode()


def write_texts(folder: Path, documents: Iterable[tuple[str, str]]) -> MappedTexts:
    """Write ids and texts, once: where the folder has them already, they are taken as they are."""
    if not (folder / _ORDER).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        bounds, keys = [(0, 0)], list[int]()
        with writing_atomically(folder / _TEXTS) as texts, writing_atomically(folder / _IDS) as ids:
            for name, text in documents:
                texts.write(text.encode())
                ids.write(name.encode())
                bounds.append((texts.tell(), ids.tell()))
                keys.append(text_key(name))
        order = np.argsort(np.array(keys, dtype=np.uint64), kind="stable")
        write_array(folder / _BOUNDS, np.array(bounds, dtype=np.int64).T)
        write_array(folder / _KEYS, np.array(keys, dtype=np.uint64)[order])
        write_array(folder / _ORDER, order)
    return MappedTexts(folder)


def forget_texts(folder: Path) -> None:
    """Have the next `write_texts` write anew."""
    (folder / _ORDER).unlink(missing_ok=True)


def text_key(text: str) -> int:
    """A hash of a text, below 2**64."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _mapped(file: Path) -> mmap.mmap | bytes:
    if file.stat().st_size == 0:  # which can't be mapped
        return b""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
