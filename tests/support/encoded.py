"""Stores of encoded texts, as processes leave them that were stopped."""

import shutil
from pathlib import Path

from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.pipeline.rows import ModelRows
from lightretriever.artifacts.pipeline.store import TextStore, column


def kept_texts(path: Path) -> int:
    """How many texts a store has, while another process may write it."""
    count = 0
    for source in path.glob("run-*"):
        try:
            count += len(column(source, "texts")) if not source.suffix else 0
        except ResumeError:
            continue  # it was joined with others
    return count


def encoded_rows(path: Path) -> ModelRows:
    """The rows of a finished store, those of a corpus of different texts in its order."""
    (source,) = path.glob("run-*")
    return TextStore(path).rows(column(source, "texts"))


def keep_texts(path: Path, count: int) -> None:
    """Take all but the first texts of a finished store away."""
    (joined,) = (source for source in path.glob("run-*") if not source.suffix)
    store, texts = TextStore(path), column(joined, "texts")[:count].copy()
    rows = store.rows(texts)
    for source in path.glob("run-*"):
        shutil.rmtree(source)
    store.add(texts, rows)
