"""The one reader of files of lines: corpus, queries, qrels and ids.

A line ends at "\\n" or "\\r\\n" and nowhere else, so that an id may hold any other sign of a line's end. A file is
UTF-8, with or without byte order marks, and may be gzipped; a file of another kind is named with a way to convert it.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.reading import open_regular

GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
HEAD: Final = 512  # bytes by which a kind is known


class Kind(NamedTuple):
    """A kind of file that is no file of lines: how it begins, what it is called, and what to do with it."""

    pattern: bytes
    name: str
    remedy: str


_JSON: Final = "Make a line of each object by `jq -c {}`, or, if it is a corpus, by `lightretriever corpus`."
_KINDS: Final = (
    Kind(rb"[P-_]\x2a\x4d\x18|\x28\xb5\x2f\xfd", "zstd", "Unpack it by `zstd -d`."),
    Kind(rb"\xfd7zXZ\x00", "xz", "Unpack it by `xz -d`."),
    Kind(rb"BZh[1-9]1AY&SY", "bzip2", "Unpack it by `bzip2 -d`."),
    Kind(rb"PK\x03\x04|PK\x05\x06", "zip", "Unpack it by `unzip`."),
    Kind(GZIP, "gzip twice over", "Unpack it once by `gzip -d`."),
    Kind(rb"PAR1(?![\t\r\n ,;|\"]|$)", "Parquet", "Make a corpus of it by `lightretriever corpus`."),
    Kind(rb"ARROW1\x00\x00|\xff{4}.{3}\x00", "Arrow", "Write Parquet in its place, by pyarrow.parquet.write_table."),
    Kind(rb"version https://git-lfs", "a Git LFS pointer, not the file itself", "Fetch the file by `git lfs pull`."),
    Kind(rb"\s*<(!DOCTYPE|html)", "HTML, as a failed download leaves it", "Fetch the file again."),
    Kind(rb"\xff\xfe|\xfe\xff|\x00\x00\xfe\xff", "UTF-16 or UTF-32", "Convert it by `iconv -f UTF-16 -t UTF-8`."),
    Kind(rb".*\x00", "binary, or UTF-16 without a mark", "Convert text by `iconv -f UTF-16LE -t UTF-8`."),
    Kind(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|\n|\]|$)", "one JSON array", _JSON.format("'.[]'")),
    Kind(rb"(\xef\xbb\xbf)?\s*\{[ \t\r]*\n", "JSON over several lines", _JSON.format(".")),
)


def kind_of(head: bytes) -> Kind | None:
    """The kind of a file that begins with `head`; None for one that may be a file of lines."""
    return next((kind for kind in _KINDS if re.match(kind.pattern, head, re.DOTALL | re.IGNORECASE)), None)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, each with its number from 1, without its end.

    A line longer than MAX_DOCUMENT_BYTES is cut to a little more than that, and refused as a document. Raises
    CorpusError for a file that can't be read to its end or is of another kind.
    """
    try:
        with open_regular(path) as file:
            packed = file.peek(2)[:2] == GZIP
            unpacked = io.BufferedReader(gzip.GzipFile(fileobj=file)) if packed else file
            if kind := kind_of(unpacked.peek(HEAD)[:HEAD]):
                what = f"{path}: this is {kind.name}, where lines of text are expected."
                raise CorpusError(what, remedy=kind.remedy)
            number = 0
            while line := unpacked.readline(MAX_DOCUMENT_BYTES + 8):  # a mark and an end may stand around it
                number += 1
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = unpacked.readline(MAX_DOCUMENT_BYTES)
                # The mark is of a file that was joined to another.
                line = line.removeprefix(_BOM).removesuffix(b"\n").removesuffix(b"\r")
                if line.strip():
                    yield number, line
    except (EOFError, OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None)  # of the system; a damaged file has none
        remedy = "Name a file that you may read." if reason else "Fetch it again."
        raise CorpusError(f"{path}: the file can't be read to its end: {reason or error}.", remedy=remedy) from error
