"""Files that are read again when their content changes: API keys, rules, certificates."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Generic, TypeVar

from lightretriever.artifacts.files.reading import MAX_YAML_BYTES, read_bounded
from lightretriever.service.errors import SettingsError

T = TypeVar("T")
_log = logging.getLogger(__name__)
REMEDY: Final = "Correct the file; a running service reads it again by itself."


class WatchedFile(Generic[T]):
    """What a file says, or several in a row, by its content as last read. Thread-safe.

    The content itself is compared, not the file's time or size, so that no change can be missed. A content that can't
    be used is parsed once. Until the file can be used, its former value stays in force and `problem` says why.
    """

    def __init__(self, name: str, files: Sequence[Path], parse: Callable[[bytes], T], **fields: str) -> None:
        """Read the file; `name`, a plural, and `fields` are for the log. SettingsError if it can't be used."""
        self._name, self._files, self._parse, self._fields = name, files, parse, fields
        self._lock = Lock()
        self._content = self._read()
        self._refused: bytes | None = None
        self.value = parse(self._content)
        """The value in force."""
        self.problem: str | None = None
        """Why the file can't be used as it is now; None if it can be."""

    def look(self) -> None:
        """Read the file, and take its value if its content is another one."""
        with self._lock:
            content = None
            try:
                content = self._read()
                if content not in (self._content, self._refused):
                    self.value, self._content = self._parse(content), content
                    _log.info("%s read again", self._name, extra=self._fields)
            except SettingsError as error:
                self._refused = content
                self._report(str(error))
            except MemoryError as error:
                self._report(f"{type(error).__name__}: {error}.")
            else:
                if content == self._content:
                    self._refused = self.problem = None

    def _read(self) -> bytes:
        try:
            return b"\n".join(read_bounded(file, MAX_YAML_BYTES) for file in self._files)
        except OSError as error:
            message = f"{error.filename}: the {self._name} can't be read: {error.strerror}."
            raise SettingsError(message, remedy=REMEDY) from error

    def _report(self, reason: str) -> None:
        problem = f"{reason} The {self._name} before stay in force."
        if problem != self.problem:
            self.problem = problem
            _log.error("%s stay as they were", self._name, extra={**self._fields, "reason": reason})
