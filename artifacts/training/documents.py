"""The texts of a training set in an SQLite file: one process reads the corpus, and all share the pages of the file."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from lightretriever.artifacts.files.atomic import new_file

_MAPPED = 2**31 - 2**16  # bytes: the most that SQLite maps into memory; it reads what is beyond


class MappedTexts(Mapping[str, str]):
    """Texts by id, in the order of writing, as `write_texts` wrote them to a file."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._database.execute(f"PRAGMA mmap_size = {_MAPPED}")
        (self._count,) = self._database.execute("SELECT count(*) FROM texts").fetchone()

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[str]:
        return (name for (name,) in self._database.execute("SELECT id FROM texts ORDER BY number"))

    def __getitem__(self, name: str) -> str:
        """The text of a document. Raises KeyError."""
        row = self._database.execute("SELECT text FROM texts WHERE id = ?", [name]).fetchone()
        if row is None:
            raise KeyError(name)
        return str(row[0])


def write_texts(file: Path, documents: Iterable[tuple[str, str]]) -> MappedTexts:
    """Write ids and texts, once: where the file is there already, it is taken as it is. Raises DiskError."""
    if not file.is_file():
        with new_file(file) as opened, closing(sqlite3.connect(opened.name)) as database:
            try:
                database.execute("PRAGMA journal_mode = off")
                database.execute("CREATE TABLE texts (number INTEGER PRIMARY KEY, id TEXT UNIQUE, text TEXT)")
                rows = ((number, *document) for number, document in enumerate(documents))
                database.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)
                database.commit()
            except sqlite3.OperationalError as error:
                raise OSError(0, str(error)) from error
    return MappedTexts(file)
