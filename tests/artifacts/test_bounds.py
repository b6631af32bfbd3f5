"""Reader and verify share the bounds of documents; tests/live/test_json_doors.py has the JSON of all doors."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.documents import document
from lightretriever.artifacts.errors import CorpusError
from tests.support.tampering import copy_of, edit_manifest, rewrite_lucene
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

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


def read(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps(record))
    assert len(list(Corpus(tmp_path))) == 1


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_reader_knows_the_bounds(tmp_path: Path, name: str) -> None:
    record, good = DOCUMENTS[name]
    if good:
        read(record, tmp_path)
    else:
        with pytest.raises(CorpusError):
            read(record, tmp_path)


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
