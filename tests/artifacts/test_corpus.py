import bz2
import gzip
import json
import lzma
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.corpus.beir import Corpus, read_ids, read_qrels, read_queries
from lightretriever.artifacts.documents import document
from lightretriever.artifacts.documents.fields import FieldKind, indexed_values, milliseconds
from lightretriever.artifacts.errors import CorpusError
from tests.support.tampering import copy_of, edit_manifest, rewrite_lucene
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

GOOD = {"_id": "a", "title": "T", "text": "x"}


def write(path: Path, *lines: object) -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz", "other.name"])
def test_reads_plain_and_gzipped_files_and_folders(tmp_path: Path, name: str) -> None:
    content = (json.dumps({**GOOD, "year": 3}) + "\n\n" + json.dumps({"_id": 7, "text": "é🎵"})).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name == "corpus.jsonl.gz" else content)
    first, second = Corpus(tmp_path if name.startswith("corpus") else path)
    assert (first.id, first.full_text, json.loads(first.raw)["year"]) == ("a", "T x", 3)
    assert (second.id, second.title, second.full_text) == ("7", "", "é🎵")
    assert json.loads(second.raw) == {"_id": "7", "text": "é🎵"}


BAD = {
    "not JSON": b'{"_id": "b"',
    "expected a JSON object, found list": b"[1]",
    '"_id" must be a non-empty string, found None': {"text": "x"},
    "\"_id\" must be a non-empty string, found ' '": {"_id": " ", "text": "x"},
    'id "a" was already used in line 1': GOOD,
    'document "b" is empty': {"_id": "b", "title": " ", "text": "\n"},
    '"text" is missing or null': {"_id": "b", "title": "T"},
    '"title" must be a string, found 3': {"_id": "b", "title": 3, "text": "x"},
    'the key "a" stands twice': b'{"_id": "b", "text": "x", "more": [{"a": 1, "a": 1}]}',
    '"_id" is missing, but there is "id": rename it': {"id": "b", "contents": "x"},
    '"text" is missing, but there is "contents": rename it': {"_id": "b", "contents": "x"},
    "a field's name has at most 200 characters": {"_id": "b", "text": "x", "f" * 201: 1},
}


@pytest.mark.parametrize(("message", "line"), BAD.items(), ids=BAD)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path, message: str, line: object) -> None:
    path = write(tmp_path / "corpus.jsonl", GOOD, line, {"_id": "z", "text": "last"})
    with pytest.raises(CorpusError) as raised:
        list(Corpus(path))
    assert str(raised.value).startswith(f"{path}, line 2: {message}")
    assert "--skip-bad" in raised.value.remedy
    corpus = Corpus(path, skip_bad=True)
    for _ in range(2):  # counted per pass, not added up
        assert [document.id for document in corpus] == ["a", "z"]
        assert corpus.skipped.count == 1
    assert message in corpus.skipped.reasons[0]


def test_limit_counts_good_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", b"bad", *({"_id": str(i), "text": "x"} for i in range(5)))
    assert [document.id for document in Corpus(path, skip_bad=True, limit=2)] == ["0", "1"]


def test_a_truncated_gzip_file_is_never_silently_short(tmp_path: Path) -> None:
    content = gzip.compress(b"".join(json.dumps({"_id": str(i), "text": "x"}).encode() + b"\n" for i in range(999)))
    (tmp_path / "corpus.jsonl.gz").write_bytes(content[:-20])
    with raises(CorpusError, naming="corpus.jsonl.gz"):
        list(Corpus(tmp_path, skip_bad=True))


def test_what_is_no_file_of_lines_is_told(tmp_path: Path) -> None:
    for name in ("nothing", "."):
        with raises(CorpusError):
            read_ids(tmp_path / name)


@pytest.mark.parametrize("line", [{"_id": "q1", "text": "again"}, {"_id": "q2", "text": " "}, {"_id": "q2"}])
def test_bad_queries_are_named(tmp_path: Path, line: object) -> None:
    path = write(tmp_path / "queries.jsonl", {"_id": "q1", "text": "one"}, line)
    with raises(CorpusError, naming="queries.jsonl, line 2"):
        read_queries(path)


@pytest.mark.parametrize(
    "line", ["q1 a 1", "q1\t0\ta\t1", "q1\ta\t0.5", "q1\ta\t1_0", "q1\t\t1", "q1\ta\t1\nq2\ta\t1\nq1\ta\t0"]
)
def test_bad_qrels_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
    with raises(CorpusError, naming="test.tsv"):
        read_qrels(tmp_path / "test.tsv")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("\ufeffquery-id\tcorpus-id\tscore\nq1\tem\t1\n2\trfc\t2\n", {"q1": {"em": 1}, "2": {"rfc": 2}}),
        ("\ufeffq1\tem\t1\nq 3\ta/b c\t1\n", {"q1": {"em": 1}, "q 3": {"a/b c": 1}}),
        ("query-id-7\tem\t1\n", {"query-id-7": {"em": 1}}),
        ("q1 0 em 1\n2 0 rfc 2\n", {"q1": {"em": 1}, "2": {"rfc": 2}}),
        ("q1\tQ0\tem\t1\n", {"q1": {"em": 1}}),
        ("q1  em   1.0 \n2 rfc -1\n", {"q1": {"em": 1}, "2": {"rfc": -1}}),
        ("q1\tem\t1\r\n\r\n2\trfc\t2\r\n", {"q1": {"em": 1}, "2": {"rfc": 2}}),
        ("q1\tem\t1\nq1\tem\t1\n", {"q1": {"em": 1}}),
        ("\ufeffq1\tem\t1\n\ufeffq2\tem\t1\n", {"q1": {"em": 1}, "q2": {"em": 1}}),
        *((f"q1\te{sign}m\t1\n", {"q1": {f"e{sign}m": 1}}) for sign in "\u2028\u2029\x85\x0b\x0c\x1c\r"),
    ],
)
def test_qrels_of_every_common_form_are_read(tmp_path: Path, content: str, found: object) -> None:
    (tmp_path / "test.tsv").write_bytes(content.encode())
    assert read_qrels(tmp_path / "test.tsv") == found
    (tmp_path / "test.tsv").write_bytes(gzip.compress(content.encode()))
    assert read_qrels(tmp_path / "test.tsv") == found


KINDS = {
    "zstd": b"\x28\xb5\x2f\xfd\x00",
    "xz": lzma.compress(b"{}"),
    "bzip2": bz2.compress(b"{}"),
    "zip": b"PK\x03\x04\x14\x00",
    "Parquet": b"PAR1\x15\x04",
    "Arrow": b"\xff\xff\xff\xffh\x02\x00\x00",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-16 without a mark": "{}".encode("utf-16-le"),
    "JSON array": b'[{"_id": "a"}]',
    "JSON array with a mark": b'\xef\xbb\xbf [\n{"_id": "a", "text": "x"}]',
    "JSON over several lines": b'{\n  "_id": "a",\n  "text": "x"\n}',
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "HTML": b"<!doctype html><html>",
    "gzip twice over": gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0),
}


@pytest.mark.parametrize("content", KINDS.values(), ids=KINDS)
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(content)
    with raises(CorpusError, naming="corpus.jsonl"):
        list(Corpus(tmp_path, skip_bad=True))


def test_a_mark_and_other_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(b'\xef\xbb\xbf{"_id": "a", "text": "x"}\r\n\r\n{"_id": "b", "text": "y"}')
    assert [document.id for document in Corpus(tmp_path)] == ["a", "b"]
    content = '\ufeff{"_id": "q\u2028\x85", "text": "x"}\n\ufeff{"_id": "2", "text": "y"}'
    (tmp_path / "queries.jsonl").write_text(content)
    assert read_queries(tmp_path) == {"q\u2028\x85": "x", "2": "y"}


DOCUMENTS: dict[str, tuple[dict[str, Any], bool]] = {
    "512 bytes of id": ({"_id": "ä" * 256, "text": "x"}, True),
    "513 bytes of id": ({"_id": "ä" * 256 + "a", "text": "x"}, False),
    "line break in the id": ({"_id": "a\nb", "text": "x"}, False),
    "long name": ({"_id": "a", "text": "x", "f" * 200: 1}, True),
    "many fields": ({"_id": "a", "text": "x", **{f"f{n}": 1 for n in range(9_998)}}, True),
    "more fields": ({"_id": "a", "text": "x", **{f"f{n}": 1 for n in range(9_999)}}, False),
    "large": ({"_id": "a", "text": "x" * 20_000}, True),
    "larger": ({"_id": "a", "text": "x" * 300_000}, False),
}


@pytest.fixture(autouse=True)
def smaller_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB take seconds; what is compared is who looks at the bound."""
    monkeypatch.setattr(document, "MAX_DOCUMENT_BYTES", 200_000)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_reader_knows_the_bounds(tmp_path: Path, name: str) -> None:
    record, good = DOCUMENTS[name]
    write(tmp_path / "corpus.jsonl", record)
    with nullcontext() if good else raises(CorpusError, naming="line 1"):
        assert len(list(Corpus(tmp_path))) == 1


@pytest.mark.parametrize("name", ["larger", "more fields"])
def test_verify_shares_the_bounds(tiny_path: Path, tmp_path: Path, name: str) -> None:
    record, good = DOCUMENTS[name]
    damaged = copy_of(tiny_path, tmp_path)
    documents = tiny_documents()
    raws = [document.raw for document in documents]
    raws[5] = json.dumps({**record, "_id": documents[5].id, "title": "t"}).encode()
    rewrite_lucene(damaged, [document.id for document in documents], raws)
    problems = {problem.message for problem in verify_bundle(damaged)}
    assert ("document 5 can't be served" in problems) != good


def test_a_line_that_is_too_long_is_a_bad_line_like_others(tmp_path: Path) -> None:
    good = '{"_id": "%s", "text": "x"}\n'
    large = json.dumps({"_id": "b", "text": "x" * 300_000}) + "\n"
    (tmp_path / "corpus.jsonl").write_text(good % "a" + large + good % "c")
    with raises(CorpusError, naming="corpus.jsonl, line 2"):
        list(Corpus(tmp_path))
    corpus = Corpus(tmp_path, skip_bad=True)
    assert [document.id for document in corpus] == ["a", "c"]
    assert corpus.skipped.count == 1


def test_all_names_of_fields_are_in_the_manifest_and_verified(tiny_path: Path, tmp_path: Path) -> None:
    damaged = copy_of(tiny_path, tmp_path)
    edit_manifest(damaged, lambda manifest: manifest["field_names"].remove("year"))
    (problem,) = verify_bundle(damaged)
    assert (problem.file, problem.message) == ("manifest.json", "field_names")
    assert (problem.expected, problem.found) == ("['_id', 'text', 'title']", "['_id', 'text', 'title', 'year']")


FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "published": "date"}


@pytest.mark.parametrize(
    ("document", "values"),
    [
        ({}, []),
        ({"source": None, "year": None, "other": 3}, []),
        ({"source": "wiki", "year": 2020}, [("source", "wiki"), ("year", "2020.0")]),
        (
            {"source": ["a", "ü", ""], "year": [1, 2.5]},
            [("source", "a"), ("source", "ü"), ("source", ""), ("year", "1.0"), ("year", "2.5")],
        ),
        ({"source": True}, [("source", "true")]),
        ({"year": -0.0}, [("year", "0.0")]),
        ({"published": ["1970-01-01", "1970-01-02T00:00:01+01:00"]}, [("published", "0"), ("published", "82801000")]),
        ({"source": []}, []),
    ],
)
def test_values(document: dict[str, object], values: list[tuple[str, str]]) -> None:
    assert indexed_values(document, FIELDS) == values


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"source": 3}, 'field "source": expected a text, found 3'),
        ({"source": ["a", {"b": 1}]}, "expected a text, found {'b': 1}"),
        ({"source": "x" * 40_000}, "at most 32,766 bytes, this one has 40,000"),
        ({"source": "\ud800"}, "not valid Unicode"),
        ({"year": "2020"}, "field \"year\": expected a number, found '2020'"),
        ({"year": True}, "expected a number, found True"),
        ({"year": 10**400}, "expected a finite number"),
        ({"year": float("nan")}, "expected a finite number, found nan"),
        ({"published": 2020}, "expected a date such as 2024-05-31"),
        ({"published": "last year"}, "found 'last year'"),
        ({"published": "2020-13-01"}, "expected a date"),
        ({"published": "2024-05-31+02:00"}, "found '2024-05-31+02:00'"),
        ({"published": "2024-05-31_12:00"}, "expected a date"),
        ({"published": "2024-W22"}, "expected a date"),
    ],
)
def test_a_value_of_another_kind_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 # the message is looked at below
        indexed_values(document, FIELDS)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00.123456Z", 123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01", -62_135_596_800_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("2024-02-29", 1_709_164_800_000),
        ("20240229", 1_709_164_800_000),
        ("2024-W09-4", 1_709_164_800_000),
        ("2024-02-29 00:00+00:00", 1_709_164_800_000),
    ],
)
def test_dates_are_milliseconds_since_1970(text: str, expected: int) -> None:
    assert milliseconds(text) == expected
