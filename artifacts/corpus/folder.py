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
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from lightretriever.artifacts.corpus.markdown import markdown_headings, markdown_title
from lightretriever.artifacts.corpus.output import Written, check_output, new_corpus
from lightretriever.artifacts.corpus.passages import Limit, Passage, passages
from lightretriever.artifacts.documents.document import Document, document_of
from lightretriever.artifacts.errors import CorpusError, readable
from lightretriever.artifacts.progress import ProgressBar

_ENDINGS: Final = (".md", ".txt")
_MAX_PATH_BYTES: Final = 500
"""UTF-8 bytes, so that an id with its number has no more than the 512 that a corpus allows."""
_MAX_BYTES: Final = 1 << 30
"""Bytes of a file, which is cut up in memory."""
_REMEDY: Final = "Mend or remove what is named, or pass --skip-bad to leave it out."


def write_text_corpus(
    folder: Path, output: Path, *, limit: Limit, skip_bad: bool = False, overwrite: bool = False
) -> Written:
    """Write the files of `folder` as a corpus in BEIR layout: the same bytes for the same files, whole or not at all.

    Hidden files and folders are passed over. Raises CorpusError for an output that is there already or has another
    ending, for a folder without a text file, and, naming all of them, for bad files: empty, unreadable, not UTF-8, no
    regular file, too large, links to folders and links that lead out of `folder`. With `skip_bad` bad files are counted
    instead. Raises DiskError when the output can't be written.
    """
    check_output(output, overwrite=overwrite)
    written = Written()
    files = _files(folder, written)
    with new_corpus(output) as file, ProgressBar("corpus", total=len(files), unit="files") as progress:
        for name in files:
            try:
                documents = text_documents(folder, name, limit)
            except ValueError as error:
                written.skipped.add(f"{readable(folder / name)}: {error}")
            else:
                file.writelines(document.raw + b"\n" for document in documents)
                written.documents += len(documents)
                written.texts += 1
            progress.advance(1)
        _check(folder, written, skip_bad=skip_bad)
    return written


def text_documents(folder: Path, name: str, limit: Limit) -> list[Document]:
    """The documents of one file, `name` below `folder`. Raises ValueError that says why there are none."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError("this path is not UTF-8; rename it") from error
    if "\n" in name or len(name.encode()) > _MAX_PATH_BYTES:
        raise ValueError(f"the path must have at most {_MAX_PATH_BYTES} bytes and no line break")
    title, text = title_and_text(PurePosixPath(name), _content(folder, name))
    headings = markdown_headings(text) if name.lower().endswith(".md") else []
    parts = passages(text, limit, title, headings) or [Passage("", [])]
    ids = [name] if len(parts) == 1 else [f"{name}#{number}" for number in range(1, len(parts) + 1)]
    fields = {"path": name, "folder": str(PurePosixPath(name).parent)}
    pairs = zip(ids, parts, strict=True)
    return [
        document_of({"_id": document_id, "title": part.title(title), "text": part.text, **fields}, {}, set())
        for document_id, part in pairs
    ]


def title_and_text(path: PurePosixPath, content: str) -> tuple[str, str]:
    """The title of a Markdown file (see `artifacts.corpus.markdown`) and what is left without it, or else the file's
    name and all of it."""
    title, text = markdown_title(content) if path.suffix.lower() == ".md" else ("", content)
    return title or path.stem, text


def _content(folder: Path, name: str) -> str:
    """The text of a file. ValueError that says why it has none, or why it is not read."""
    try:
        real = os.path.realpath(folder / name, strict=True)  # unlike resolve(), OSError for a link to itself
        within = PurePosixPath(os.path.relpath(real, os.path.realpath(folder)))
        if any(part.startswith(".") for part in within.parts):
            where = "out of the folder" if within.parts[0] == ".." else "to a hidden file"
            raise ValueError(f"a link {where}; it is not followed")
        # Nobody may put a link or a pipe there between the check and the reading.
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
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
    links to folders, which may lead out of it or in a circle. Counts what is passed over."""
    if not folder.is_dir():
        raise CorpusError(f"{folder}: no folder.", remedy="Name the folder of text files first, then the corpus.")

    def unreadable(error: OSError) -> None:
        written.skipped.add(f"{readable(error.filename)}: can't be looked into ({error.strerror})")

    paths = []
    for parent, folders, names in os.walk(folder, onerror=unreadable):
        entries = len(folders) + len(names)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent) / name for name in folders):
            with suppress(PermissionError):  # it will be unreadable
                if path.is_symlink():
                    written.skipped.add(f"{readable(path)}: a link to a folder; it is not followed")
        texts = [name for name in names if name.lower().endswith(_ENDINGS) and not name.startswith(".")]
        paths += [(Path(parent) / name).relative_to(folder).as_posix() for name in texts]
        written.passed_over += entries - len(folders) - len(texts)
    return sorted(paths, key=os.fsencode)


def _check(folder: Path, written: Written, *, skip_bad: bool) -> None:
    count, reasons = written.skipped.count, written.skipped.reasons
    if count and not skip_bad:
        others = f"; and {count - len(reasons)} more" if count > len(reasons) else ""
        raise CorpusError(f"{'; '.join(reasons)}{others}.", remedy=_REMEDY)
    if not written.documents:
        endings = " or ".join(_ENDINGS)
        raise CorpusError(f"{folder}: no {endings} file with a text in it or below.", remedy="Give another folder.")
