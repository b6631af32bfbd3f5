"""The words of the errors that tests expect, all in one file, tests/wordings.txt. The tests name the kind of an error.

    pytest --wordings    write those of the tests that run, after a change of a text; look at the difference

Below each test stands what its errors say, in their order, with names in capitals for what differs from run to run,
such as TMP for a temporary folder.
"""

import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = ["begin", "end", "raises", "read_wordings"]

E = TypeVar("E", bound=Exception)
ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "wordings.txt"
HEAD = "# What errors say, by test; written by pytest --wordings"
INDENT = "    "

_TMP = rf"{re.escape(os.path.realpath(tempfile.gettempdir()))}/"
_NAMED = (
    (re.compile(rf"{_TMP}pytest-of-[^/]+/pytest-[^/]+/(popen-gw\d+/)?[^/\s'\":;,]+"), "TMP"),
    (re.compile(re.escape(sys.executable)), "PYTHON"),
    (re.compile(r"(?<=127\.0\.0\.1:|localhost:)\d+"), "PORT"),
    (re.compile(r"(?<=\w@)[0-9a-f]{4,8}\b"), "ADDRESS"),
    (re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8,64}\b"), "HASH"),
    (re.compile(r" \[type=.*?, input_type=\w+\]"), ""),
    (re.compile(rf"(?<=-){os.getpid()}\b"), "PID"),
    (re.compile(r"(?<=errors\.pydantic\.dev/)[\d.]+"), "VERSION"),
    (re.compile(r"Error in .+? at /\S+:\d+"), "Error in FAISS"),
    (re.compile(r"(?<=\] )[^\]]+ \(_ssl\.c:\d+\)"), "OPENSSL"),
)
_writing = False
_found = defaultdict[str, list[str]](list)


@contextmanager
def raises(kind: type[E] | tuple[type[E], ...]) -> Iterator[pytest.ExceptionInfo[E]]:
    """The block raises an error of a kind, in the words that the file has for this place of this test."""
    with pytest.raises(kind) as caught:
        yield caught
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    text = _named(f"{type(caught.value).__name__}: {caught.value}")
    number = len(_found[test])
    _found[test].append(text)
    if not _writing:
        expected = "".join(read_wordings().get(test, [])[number : number + 1])
        assert text == expected, f"{test} says\n{text}\nand not\n{expected}\nIf that is right, run pytest --wordings"


def begin(config: pytest.Config) -> None:
    """Read whether texts are written in this process, or compared."""
    global _writing
    _writing = config.getoption("wordings")


def end() -> None:
    """Write what was found, if so, in the place of all that the same tests had before."""
    if not _writing or not _found:
        return
    with FILE.open("r+", encoding="utf-8") as file:
        flock(file, LOCK_EX)
        read_wordings.cache_clear()
        lines = [HEAD]
        for test, texts in sorted((read_wordings() | _found).items()):
            lines += [test, *(f"{INDENT}{text}" for text in texts)]
        file.truncate()
        file.write("\n".join(lines) + "\n")


@cache
def read_wordings() -> dict[str, list[str]]:
    """The texts of the file by test, in their order."""
    texts = dict[str, list[str]]()
    _, *lines = FILE.read_text(encoding="utf-8").splitlines()
    of_test = list[str]()
    for line in lines:
        if line.startswith(INDENT):
            of_test.append(line.removeprefix(INDENT))
        else:
            of_test = texts[line] = []
    return texts


def _named(text: str) -> str:
    for pattern, name in _NAMED:
        text = pattern.sub(name, text)
    return text.encode("unicode_escape").decode("ascii")
