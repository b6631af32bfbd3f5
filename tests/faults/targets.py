"""What is fuzzed: functions of bytes that let no exception out unless it is a finding."""

import json
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from lightretriever.artifacts.bundle.manifest import Manifest, parse_manifest
from lightretriever.artifacts.errors import BundleError, DiskError, JournalError, LightRetrieverError
from lightretriever.artifacts.live.documents import read_fields, read_impacts, read_vector
from lightretriever.artifacts.live.journal import Journal, Record
from lightretriever.service.errors import ServiceError, SettingsError
from lightretriever.service.http.json import parse, parse_documents, problem_response
from lightretriever.service.schemas import BatchRequest, DocumentLine, EncodeRequest, Mode, SearchRequest, Weights
from lightretriever.service.search.request import RequestReader
from lightretriever.service.search.rules import RulesFile
from lightretriever.service.settings import Settings
from tests.support.tampering import sign

CORPUS: Final = Path(__file__).with_name("corpus")
_SETTINGS: Final = Settings()
_READER: Final = RequestReader(
    _SETTINGS,
    tasks={"default": None, "fact": None},
    default_task="default",
    fields=("title", "text", "year"),
    filters={"year": "number"},
    modes=get_args(Mode),
    weights=Weights(dense=0.5, sparse=0.5),
    feedback=0.5,
    normalization="evidence",
    spells=True,
    reranks=True,
    phrases=None,
)
_READERS: Final[dict[Any, Callable[[Any], object]]] = {
    SearchRequest: _READER.read_search,
    BatchRequest: lambda batch: _READER.read_batch(batch.searches),
    EncodeRequest: _READER.check_encode,
}
_LONGEST_PROBLEM: Final = 10_000
_JOURNAL: Final = "journal.sqlite"


class FindingError(Exception):
    """What is no crash, but still not as promised."""


def body(data: bytes) -> None:
    """The body of a request, from HTTP to what the engine would be given."""
    for model, read in _READERS.items():
        try:
            read(parse(data, model))
        except ServiceError as error:
            _check_problem(error)


def _check_problem(error: ServiceError) -> None:
    """A problem is a 4xx of moderate size, and one with fields at fault names them."""
    answer = json.loads(bytes(problem_response(error, instance="/search", request_id="1").body))
    if not 400 <= answer["status"] < 500 or not answer["detail"]:
        raise FindingError(f"no answer for a client: {answer}") from error
    if answer["status"] == 422 and not all(item["field"] and item["message"] for item in answer["errors"] or [{}]):
        raise FindingError(f"no field is named: {answer}") from error
    if len(json.dumps(answer)) > _LONGEST_PROBLEM:
        raise FindingError("the problem is longer than a problem should be") from error


def manifest(data: bytes) -> None:
    """A manifest as it is, and once more with the hash that its fields have."""
    _parse(data)
    try:
        signed = json.dumps(sign(json.loads(data))).encode()
    except (ValueError, RecursionError, AttributeError):
        return
    _parse(signed)


def _parse(data: bytes) -> None:
    path = Path("manifest.json")
    try:
        read = parse_manifest(data, path)
    except BundleError as error:
        if not error.message.startswith("manifest.json: "):
            raise FindingError(f"the file is not named: {error}") from error
        return
    if parse_manifest(read.to_bytes(), path) != read:
        raise FindingError("the manifest is another one when it is written and read again")


def lines(data: bytes) -> None:
    """Lines of documents to write, from HTTP to what a journal or a cluster would be given."""
    try:
        for line in parse_documents(data, DocumentLine):
            if line.delete:
                continue
            with suppress(LightRetrieverError):
                read_fields(line.id, line.fields, _served())
                if line.vector is not None:
                    read_vector(line.vector, _served())
                if line.impacts is not None:
                    read_impacts(line.impacts, _served(), 511)
    except ServiceError as error:
        _check_problem(error)


def rules(data: bytes) -> None:
    """A file of rules, which are applied to a query if it can be used."""
    path = _folder() / "rules.yaml"
    path.write_bytes(data)
    try:
        found = RulesFile(path)
    except SettingsError as error:
        if str(path) not in str(error):
            raise FindingError(f"the file is not named: {error}") from error
        return
    for query in ("music player", "photo", "a b c"):
        found.value.of(query)


def journal(data: bytes) -> None:
    """A journal with a change of any columns, parted by line feeds, whose checksum is theirs, and one whose file has
    the bytes in the place that the first two tell."""
    begun = _folder() / "begun"
    if not begun.exists():
        with Journal(begun, _served()) as opened, opened.writing(inf):
            vector = np.eye(1, opened.dimension, dtype=np.float32)[0]
            with opened.appending([Record("a", b'{"_id": "a", "text": "word"}', vector, {"word": 1})]):
                pass
    content = (begun / _JOURNAL).read_bytes()
    place = int.from_bytes(data[:2], "little") % len(content)
    _read_journal(content[:place] + data[2:] + content[place + len(data[2:]) :])
    columns = (*data.split(b"\n", 3), *[None] * 3)[:4]
    number, name = 2, (columns[0] or b"").decode(errors="replace")
    checksum = zlib.crc32(f"{number} {name}".encode())
    for part in columns[1:]:
        checksum = zlib.crc32(part or b"", checksum)
    _read_journal(content, (number, name, *columns[1:3], columns[3] or b"", checksum))


def _read_journal(content: bytes, change: tuple[object, ...] | None = None) -> None:
    folder = _folder() / "changed"
    folder.mkdir(exist_ok=True)
    try:
        (folder / _JOURNAL).write_bytes(content)
        if change is not None:
            with closing(sqlite3.connect(folder / _JOURNAL)) as database, database:
                database.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", change)
        with Journal(folder, _served()) as opened:
            opened.read()
    except (JournalError, DiskError) as error:
        if _JOURNAL not in str(error) and str(folder) not in str(error):
            raise FindingError(f"the file is not named: {error}") from error
    finally:
        shutil.rmtree(folder)


@cache
def _served() -> Manifest:
    """The manifest of a bundle of words, with vectors and the fields `year` and `source`."""
    return parse_manifest(corpus("manifest")[-1], Path("manifest.json"))


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


TARGETS: Final = {"body": body, "manifest": manifest, "lines": lines, "rules": rules, "journal": journal}
"""By name."""


def corpus(target: str) -> list[bytes]:
    """Inputs worth keeping: where fuzzing begins, and what every run of the tests tries first. A file is a JSON list;
    a text stands for the bytes of its code points."""
    return [text.encode("latin-1") for text in json.loads((CORPUS / f"{target}.json").read_text(encoding="utf-8"))]
