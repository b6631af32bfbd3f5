"""A document is read the same way wherever it comes from: all doors take, or refuse, the same JSON."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.corpus.tables import Columns, Dialect, write_row_corpus
from lightretriever.artifacts.errors import CorpusError, JournalError
from lightretriever.artifacts.live.journal import Journal, Record
from lightretriever.service.search.engine import SearchEngine
from tests.support.tampering import copy_of, rewrite_lucene
from tests.support.tiny import make_tiny_bundle, tiny_documents
from tests.support.written import VECTOR, ask, impacts_of

BOUND = "objects and lists stand in each other"
DEEPEST = b"[" * 99 + b"]" * 99  # the document is one more

REFUSED = {
    "key twice, once escaped": (b'"year": 1, "ye\\u0061r": 2', 'the key "year" stands twice'),
    "key twice inside": (b'"more": [{"a": {"b": 1, "b": 2}}]', 'the key "b" stands twice'),
    "text twice": (b'"text": "other"', 'the key "text" stands twice'),
    "empty key twice": (b'"": 1, "": 1', 'the key "" stands twice'),
    "2^64": (b'"more": {"a": [[18446744073709551616]]}', "doesn't fit into 64 bits"),
    "-2^63 - 1": (b'"more": -9223372036854775809', "doesn't fit into 64 bits"),
    "5,000 digits": (b'"more": ' + b"1" * 5_000, "doesn't fit into 64 bits"),
    "NaN": (b'"more": NaN', "NaN is no JSON number"),
    "-Infinity": (b'"more": [-Infinity]', "-Infinity is no JSON number"),
    "1e309": (b'"more": 1e309', "1e309 is no JSON number"),
    "half a pair": (b'"more": "\\ud800"', "a lone surrogate"),
    "halves in the wrong order": (b'"more": ["\\uDFFF\\ud800"]', "a lone surrogate"),
    "half a pair as key": (b'"more": {"\\ud83d": 1}', "a lone surrogate"),
    "half a pair in UTF-8": (b'"more": "\xed\xa0\x80"', "utf-8"),
    "UTF-8 that is longer than needed": (b'"more": "\xc0\xaf"', "utf-8"),
    "100 lists": (b'"more": ' + b"[" + DEEPEST + b"]", BOUND),
    "100,000 lists": (b'"more": ' + b"[" * 100_000 + b"]" * 100_000, BOUND),
    "a tab in a text": (b'"more": "\t"', "not JSON: Invalid control character"),
    "leading zero": (b'"more": 01', "not JSON"),
    "comma at the end": (b'"more": [1,]', "not JSON"),
    "comment": (b'"more": 1 // one', "not JSON"),
}
TAKEN = {
    "64 bits": (b'"more": [18446744073709551615, -9223372036854775808]', [2**64 - 1, -(2**63)]),
    "floats": (b'"more": [1e308, -0.0, 5e-324, 1e-400, 0.1]', [1e308, -0.0, 5e-324, 0.0, 0.1]),
    "a pair": (b'"more": "\\ud83c\\udfb5\\u0000"', "🎵\0"),
    "a backslash before u": (b'"more": "\\\\ud800"', "\\ud800"),
    "no Unicode character": (b'"more": "\\uffff\xef\xbf\xbe"', "\uffff\ufffe"),
    "equal keys in two objects": (b'"more": [{"a": 1}, {"A": 1, "a": 2}]', [{"a": 1}, {"A": 1, "a": 2}]),
    "99 lists": (b'"more": ' + DEEPEST, json.loads(DEEPEST)),
    "no values": (b'"more": [null, {}, [], ""]', [None, {}, [], ""]),
}


class Door(NamedTuple):
    """What the doors need. A door is a function of `fields`, JSON without braces. It returns what becomes of "more", or
    raises ValueError that says why nothing does."""

    bundle: Bundle
    url: str
    impacts: bytes
    tmp_path: Path


def corpus(fields: bytes, door: Door) -> Any:
    path = door.tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"_id": "a", "text": "zebra", ' + fields + b"}\n")
    try:
        (document,) = Corpus(path)
    except CorpusError as error:
        raise ValueError(str(error)) from error
    return json.loads(document.raw)["more"]


def table(fields: bytes, door: Door) -> Any:
    path, output = door.tmp_path / "table", door.tmp_path / "corpus.jsonl"
    path.write_bytes(b'[{"_id": "a", "text": "zebra", ' + fields + b"}]")
    try:
        write_row_corpus([path], output, Columns(), Dialect())
    except CorpusError as error:
        raise ValueError(str(error)) from error
    return json.loads(output.read_bytes()).get("more")


def put(fields: bytes, door: Door) -> Any:
    return written(door, "PUT", "/documents/a", fields, b"", "application/json")


def bulk(fields: bytes, door: Door) -> Any:
    return written(door, "POST", "/documents", fields, b'"id": "a", ', "application/x-ndjson")


def written(door: Door, method: str, path: str, fields: bytes, name: bytes, media: str) -> Any:
    vector = json.dumps(VECTOR).encode()
    body = b'{%s"vector": %s, "impacts": %s, "fields": {"text": "zebra", %s}}' % (name, vector, door.impacts, fields)
    answer = ask(method, door.url + path, headers={"content-type": media}, content=body)
    if answer.status_code == 400:
        raise ValueError(answer.json()["detail"])
    assert answer.status_code == 200, answer.text
    return ask("GET", f"{door.url}/documents/a").json()["fields"]["more"]


def journal(fields: bytes, door: Door) -> Any:
    raw, unit = b'{"_id": "a", "text": "zebra", ' + fields + b"}", np.full(16, 0.25, np.float32)
    folder, manifest, written = door.tmp_path / "live", door.bundle.manifest, Record("a", raw, unit, {"0": 1})
    with Journal(folder, manifest) as one, one.writing(inf), one.appending([written]):
        pass
    with Journal(folder, manifest) as one:
        try:
            (record,) = one.read()
        except JournalError as error:
            raise ValueError(str(error)) from error
    return json.loads(record.raw or b"")["more"]


def verify(fields: bytes, door: Door) -> Any:
    damaged, documents = copy_of(door.bundle.path, door.tmp_path), tiny_documents(20)
    ids, raws = [document.id for document in documents], [document.raw for document in documents]
    raws[5] = json.dumps({"_id": ids[5], "text": "zebra"}).encode()[:-1] + b", " + fields + b"}"
    rewrite_lucene(damaged, ids, raws)
    for problem in verify_bundle(damaged):
        if problem.message == "document 5 can't be served":
            raise ValueError(problem.found)
    return json.loads(raws[5])["more"]


DOORS = [corpus, table, put, bulk, journal, verify]
IN_OWN_WORDS = (table, journal)  # DuckDB finds some before, and a journal says where it is damaged, not why


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose documents may have the field `more`."""
    documents = [replace(document, more={"more": 1}) for document in tiny_documents(20)]
    return make_tiny_bundle(tmp_path_factory.mktemp("doors") / "tiny", documents=documents)


@pytest.fixture
def door(bundle: Bundle, engine: SearchEngine, url: str, tmp_path: Path) -> Door:
    return Door(bundle, url, json.dumps(impacts_of(engine, "zebra")).encode(), tmp_path)


@pytest.mark.parametrize("read", DOORS)
def test_all_doors_refuse_the_same(read: Callable[[bytes, Door], Any], door: Door) -> None:
    for name, (fields, says) in REFUSED.items():
        (door.tmp_path / name).mkdir()
        expected = None if read in IN_OWN_WORDS else f"(?i){re.escape(says)}"
        with pytest.raises(ValueError, match=expected):  # if none is raised, print which
            print(name, read(fields, door._replace(tmp_path=door.tmp_path / name)))


@pytest.mark.parametrize("read", DOORS)
def test_all_doors_take_the_same(read: Callable[[bytes, Door], Any], door: Door) -> None:
    for name, (fields, value) in TAKEN.items():
        (door.tmp_path / name).mkdir()
        assert repr(read(fields, door._replace(tmp_path=door.tmp_path / name))) == repr(value), name


def test_of_a_key_that_stands_twice_in_a_search_the_last_counts(url: str) -> None:
    body = b'{"query": "zebra", "k": 1, "query": "music", "k": 3}'
    answer = ask("POST", f"{url}/search", headers={"content-type": "application/json"}, content=body)
    plain = ask("POST", f"{url}/search", json={"query": "music", "k": 3})
    assert [hit["id"] for hit in answer.json()["hits"]] == [hit["id"] for hit in plain.json()["hits"]]
    assert len(answer.json()["hits"]) == 3
