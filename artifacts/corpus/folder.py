"""A corpus of a folder of text files: `.txt` and `.md` in the folder and below, in UTF-8.

A file is a document; a longer one is a document for each of its passages (`artifacts.corpus.passages`):

    _id      the path below the folder, with / between its parts; path#1, path#2, … for passages
    title    that of a Markdown file's front matter, or its first heading, or else the file's name without its ending;
             behind it, with " / " between, the headings above a later passage
    text     the rest
    path     the path below the folder, the same for all passages of a file
    folder   the path of the folder that the file lies in, "." for the uppermost one
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, Final

from markdown_it import MarkdownIt

from lightretriever.artifacts.corpus.beir import Written, new_corpus
from lightretriever.artifacts.corpus.passages import Heading, Limit, Passage, passages
from lightretriever.artifacts.documents.document import Document, document_of
from lightretriever.artifacts.errors import CorpusError, readable
from lightretriever.artifacts.files.reading import parse_yaml
from lightretriever.artifacts.reports import ProgressBar

_ENDINGS: Final = (".md", ".txt")
_MAX_PATH_BYTES: Final = 500  # so that an id with its number has no more than the 512 that a corpus allows
_MAX_BYTES: Final = 1 << 30  # of a file, which is cut up in memory
_LINK: Final = "a link; it is not followed"
_BLOCKS: Final = MarkdownIt("commonmark").disable("inline")
_BLANKS: Final = " \t"


def write_text_corpus(
    folder: Path, output: Path, *, limit: Limit, skip_bad: bool = False, overwrite: bool = False
) -> Written:
    """Write the files of `folder` as a corpus in BEIR layout: the same bytes for the same files, whole or not at all.

    Hidden files and folders are passed over. Raises CorpusError for an output that is there already or has another
    ending, for a folder without a text file, and, naming all of them, for bad files: empty, unreadable, not UTF-8, no
    regular file, too large, links. With `skip_bad` bad files are counted instead. Raises DiskError when the output
    can't be written.
    """
    if not folder.is_dir():
        raise CorpusError(f"{folder}: no folder.", remedy="Name the folder of text files first, then the corpus.")
    written = Written()
    files, skipped = _files(folder, written), written.skipped
    with (
        new_corpus(output, overwrite=overwrite) as file,
        ProgressBar("corpus", total=len(files), unit="files") as progress,
    ):
        for name in files:
            try:
                documents = text_documents(folder, name, limit)
            except ValueError as error:
                skipped.add(f"{readable(folder / name)}: {error}")
            else:
                file.writelines(document.raw + b"\n" for document in documents)
                written.documents += len(documents)
                written.texts += 1
            progress.advance(1)
        if skipped.count and not skip_bad:
            others = skipped.count - len(skipped.reasons)
            raise CorpusError(
                f"{'; '.join(skipped.reasons)}{f'; and {others} more' if others else ''}.",
                remedy="Mend or remove what is named, or pass --skip-bad to leave it out.",
            )
        if not written.documents:
            endings = " or ".join(_ENDINGS)
            raise CorpusError(f"{folder}: no {endings} file with a text in it or below.", remedy="Give another folder.")
    return written


def text_documents(folder: Path, name: str, limit: Limit) -> list[Document]:
    """The documents of one file, `name` below `folder`. Raises ValueError that says why there are none."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError("this path is not UTF-8; rename it") from error
    if "\n" in name or len(name.encode()) > _MAX_PATH_BYTES:
        raise ValueError(f"the path must have at most {_MAX_PATH_BYTES} bytes and no line break")
    path = PurePosixPath(name)
    title, text, headings = titled(path, _content(folder / name))
    parts = passages(text, limit, title, headings) or [Passage(title, "")]
    ids = [name] if len(parts) == 1 else [f"{name}#{number}" for number in range(1, len(parts) + 1)]
    fields = {"path": name, "folder": str(path.parent)}
    records = ({"_id": one, **part._asdict(), **fields} for one, part in zip(ids, parts, strict=True))
    return [document_of(record, {}, set()) for record in records]


def titled(path: PurePosixPath, content: str) -> tuple[str, str, list[Heading]]:
    """The title of a file, its text without it, and the headings in that; of a file that is no Markdown, its name, all
    of it, and none.

    The title of Markdown is that of the front matter (YAML or TOML), or else the first heading of the first level, or a
    heading of any level that the text begins with, or else the name. Code, lists, quotes and comments hold no heading.
    """
    if path.suffix.lower() != ".md":
        return path.stem, content, []
    fields, body = _front_matter(content)
    title = "" if fields.get("title") is None else " ".join(str(fields["title"]).split())
    if not title:
        lines = body.split("\n")
        for begin, end, level, heading in _headings(body):
            if level == 1 or not "".join(lines[:begin]).strip():
                title, body = heading, "\n".join([*lines[:begin], *lines[end:]])
                break
    offsets = [0, *accumulate(len(line) + 1 for line in body.split("\n"))]
    headings = [Heading(offsets[begin], level, text) for begin, _, level, text in _headings(body)]
    return title or path.stem, body, headings


def _content(path: Path) -> str:
    """The text of a file. ValueError that says why it has none, or why it is not read."""
    try:
        if path.is_symlink():
            raise ValueError(_LINK)
        # Nobody may put a link or a pipe there between the check and the reading.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("no regular file")
            if status.st_size > _MAX_BYTES:
                raise ValueError(f"at most {_MAX_BYTES:,} bytes are possible, it has {status.st_size:,}; cut it up")
            content = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"not UTF-8 (byte {error.start:,} is 0x{byte:02x}); convert it, as with iconv") from error
    except OSError as error:
        raise ValueError(f"can't be read ({error.strerror})") from error
    if not content.strip():
        raise ValueError("empty")
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _files(folder: Path, written: Written) -> list[str]:
    """The text files below a folder, by their paths as bytes. What can't be looked into is counted as bad, and so are
    links to folders. Counts what is passed over."""

    def unreadable(error: OSError) -> None:
        written.skipped.add(f"{readable(error.filename)}: can't be looked into ({error.strerror})")

    paths = []
    for parent, folders, names in os.walk(folder, onerror=unreadable):
        entries = len(folders) + len(names)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent) / name for name in folders):
            with suppress(PermissionError):  # it will be unreadable
                if path.is_symlink():
                    written.skipped.add(f"{readable(path)}: {_LINK}")
        texts = [name for name in names if name.lower().endswith(_ENDINGS) and not name.startswith(".")]
        paths += [(Path(parent) / name).relative_to(folder).as_posix() for name in texts]
        written.passed_over += entries - len(folders) - len(texts)
    return sorted(paths, key=os.fsencode)


def _headings(text: str) -> Iterator[tuple[int, int, int, str]]:
    """The headings with a text: the line where each begins, the one after its end, level, and text."""
    tokens = _BLOCKS.parse(text)
    for number, token in enumerate(tokens):
        title = " ".join(tokens[number + 1].content.split("\n")) if token.type == "heading_open" else ""
        if token.level == 0 and token.map and title:
            begin, end = token.map
            yield begin, end, int(token.tag[1]), title


def _front_matter(content: str) -> tuple[dict[str, Any], str]:
    """Split a file into its front matter, a mapping, and its text."""
    for mark, parse in (("---", parse_yaml), ("+++", tomllib.loads)):
        begin, _, rest = content.partition("\n")
        end = re.search(rf"^(?:{re.escape(mark)}|\.\.\.)[ \t]*(?:\n|\Z)", rest, re.MULTILINE)
        if begin.rstrip(_BLANKS) == mark and end:
            try:
                fields = parse(rest[: end.start()])
            except ValueError:  # a rule, and text below it
                continue
            if isinstance(fields, dict):
                return fields, rest[end.end() :]
    return {}, content
