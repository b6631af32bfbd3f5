"""Every exception this project raises on purpose, below the HTTP layer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class LightRetrieverError(Exception):
    """Base class. `message` says what is wrong (with the values), `remedy` what to do about it."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by text and attributes: the arguments of subclasses differ, and a pool of processes hangs on an error
        that it can't restore."""
        return Exception.__new__, (type(self), *self.args), vars(self)


class BundleError(LightRetrieverError):
    """A bundle is missing, damaged, inconsistent or of another format."""


class CorpusError(LightRetrieverError):
    """A line of a corpus, queries or qrels file can't be used."""


class RecipeError(LightRetrieverError):
    """A recipe, or a setting of an offline command, is wrong."""


class ResumeError(LightRetrieverError):
    """A work directory was begun with other inputs or settings."""


class DiskError(LightRetrieverError):
    """A file can't be read or written: the disk is full, or permissions forbid it."""


class OutputError(LightRetrieverError):
    """What a command prints can't be written: the disk is full, or its reader has `closed` the pipe."""

    def __init__(self, reason: str, *, closed: bool) -> None:
        super().__init__(f"The output can't be written: {reason}.", remedy="Send it to another place.")
        self.closed = closed


class ModelError(LightRetrieverError):
    """A model, adapter or tokenizer can't be loaded, or lacks a part that is needed."""


class TokenizerError(LightRetrieverError):
    """A tokenizer fails on a text, such as one with a character for which it has no token."""


class ClusterError(LightRetrieverError):
    """An OpenSearch cluster can't be reached or used, or does not hold what it should."""


class ClusterTimeoutError(ClusterError):
    """An OpenSearch cluster did not answer in time."""


class ConflictError(LightRetrieverError):
    """A live document has another version than was expected."""


class DocumentError(LightRetrieverError):
    """A document can't be written beside those of a bundle. `field` is what is wrong, such as `vector` or
    `impacts.17`."""

    def __init__(self, field: str, message: str, *, remedy: str) -> None:
        super().__init__(f"{field}: {message}", remedy=remedy)
        self.field = field


class UnencodedError(DocumentError):
    """A document's vector or impacts are missing, and the index has none of this text."""


class TooManyValuesError(LightRetrieverError):
    """Documents have too many different values in a field to count them."""

    def __init__(self, field: str, most: int) -> None:
        super().__init__(
            f"The documents have more than {most:,} different values of {field!r}.",
            remedy="Count a field of fewer values, or fewer documents.",
        )


class JournalError(LightRetrieverError):
    """The journal of live documents is damaged, or does not fit the bundle."""


class MissingExtraError(LightRetrieverError):
    """An optional part of the installation (an extra) is missing."""


class JavaError(LightRetrieverError):
    """The JVM can't start, the Lucene jar is missing, or a Lucene call failed."""


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Raise MissingExtraError, which names the `extra`, for a module that an import in the block does not find."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"this command needs {error.name}, which is not installed.",
            remedy=f"Install the extra: pip install 'lightretriever-search[{extra}]'.",
        ) from error


def readable(text: str | Path) -> str:
    """A text for a message, such as a path: what is not UTF-8 in it as \\x..; other halves of characters as \\u...."""
    escaped = re.sub("[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", str(text))
    return escaped.encode("utf-8", "backslashreplace").decode()
