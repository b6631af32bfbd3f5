import gzip
import json
from pathlib import Path

import pytest
from lightretriever.artifacts.corpus.beir import Corpus, read_qrels, read_queries
from lightretriever.artifacts.errors import CorpusError

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
    '"_id" must be at most 512 bytes': {"_id": "b\nc", "text": "x"},
    'id "a" was already used in line 1': GOOD,
    'document "b" is empty': {"_id": "b", "title": " ", "text": "\n"},
    '"text" must be a string, found None': {"_id": "b", "title": "T"},
    '"title" must be a string, found 3': {"_id": "b", "title": 3, "text": "x"},
    "a lone surrogate": b'{"_id": "b", "text": "\\ud800"}',
    "not JSON: 'utf-8' codec": b'{"_id": "b", "text": "\xff"}',
    "not JSON: NaN is no JSON number": b'{"_id": "b", "text": "x", "year": NaN}',
    "not JSON: 1e999 is no JSON number": b'{"_id": "b", "text": "x", "year": 1e999}',
    "not JSON: 18446744073709551616 doesn't fit": b'{"_id": "b", "text": "x", "year": 18446744073709551616}',
    "not JSON: maximum recursion": b"[" * 100_000,
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
    with pytest.raises(CorpusError, match="can't be read to its end"):
        list(Corpus(tmp_path, skip_bad=True))


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no corpus\.jsonl or corpus\.jsonl\.gz there"):
        Corpus(tmp_path)


def test_queries_and_qrels(tmp_path: Path) -> None:
    write(tmp_path / "queries.jsonl", {"_id": "q1", "text": "one"}, {"_id": 2, "text": "two"})
    assert read_queries(tmp_path) == {"q1": "one", "2": "two"}
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta\t1\nq1\tb\t0\n2\ta\t2\n")
    assert read_qrels(tmp_path / "test.tsv") == {"q1": {"a": 1, "b": 0}, "2": {"a": 2}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"_id": "q1", "text": "again"}, "used twice"),
        ({"_id": "q2", "text": " "}, "empty text"),
        ({"_id": "q2"}, '"text" must be a string'),
    ],
)
def test_bad_queries_are_named(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "queries.jsonl", {"_id": "q1", "text": "one"}, line)
    with pytest.raises(CorpusError, match=rf"line 2: .*{message}"):
        read_queries(path)


@pytest.mark.parametrize("line", ["q1 a 1", "q1\ta\tx", "q1\ta"])
def test_bad_qrels_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
    with pytest.raises(CorpusError, match="line 2: expected query-id"):
        read_qrels(tmp_path / "test.tsv")
