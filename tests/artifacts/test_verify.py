"""`verify_bundle` finds every inconsistency, and says file, both values and the remedy."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.bundle.reader import Bundle, Problem
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from tests.support.tampering import copy_of, edit_manifest, flip_bit, resign, rewrite_lucene
from tests.support.tiny import make_tiny_bundle, tiny_documents, train_tokenizer
from tests.support.vectors import Layout
from tests.support.wordings import raises


@pytest.fixture
def damaged(tiny_path: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle, to be damaged."""
    return copy_of(tiny_path, tmp_path)


def found_in(path: Path) -> list[Problem]:
    problems = verify_bundle(path)
    for problem in problems:
        assert all((problem.file, problem.message, problem.expected, problem.found, problem.remedy))
    return problems


def found_at_once(path: Path) -> Problem:
    """The only problem, which ends the opening of a bundle, too."""
    (problem,) = found_in(path)
    with pytest.raises(BundleError, match=re.escape(str(problem))):
        Bundle.open(path)
    return problem


@pytest.mark.parametrize("vocabulary", get_args(VocabularyKind))
@pytest.mark.parametrize("dense", [True, False])
def test_a_sound_bundle_of_every_kind_has_no_problems(tmp_path: Path, vocabulary: VocabularyKind, dense: bool) -> None:
    assert found_in(make_tiny_bundle(tmp_path / "bundle", documents=20, vocabulary=vocabulary, dense=dense).path) == []


def test_every_file_missing_truncated_or_flipped_is_found(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "b", documents=30, table_dtype="int8", idf=True)  # scales and weights, too
    for file, info in bundle.manifest.files.items():
        path = bundle.path / file
        content = path.read_bytes()
        for place in (0.0, 0.5, 1.0):
            flip_bit(path, place)
            (problem,) = found_in(bundle.path)
            assert (problem.file, problem.expected, len(problem.found)) == (file, info.sha256, 64)
            assert problem.message == "wrong sha256, the content was changed"
            path.write_bytes(content)
        for size in (0, info.bytes - 1, info.bytes + 1):
            path.write_bytes((content + b"\0")[:size])
            problem = found_at_once(bundle.path)
            assert (problem.file, problem.message, problem.found) == (file, "wrong size", f"{size} bytes")
        path.unlink()
        problem = found_at_once(bundle.path)
        assert (problem.file, problem.message, problem.found) == (file, "the file is missing", "no file")
        path.write_bytes(content)
    assert found_in(bundle.path) == []


def test_both_hashes_of_a_file_must_be_right(damaged: Path) -> None:
    edit_manifest(damaged, lambda record: record["files"]["dense.faiss"].update(xxh3="0" * 32))
    (problem,) = found_in(damaged)
    assert (problem.file, problem.expected) == ("dense.faiss", "0" * 32)
    with raises(BundleError, naming="dense.faiss"):
        Bundle.open(damaged).check_hashes()


@pytest.mark.parametrize("file", ["manifest.json", "dense.faiss"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link to itself", "folder"])
def test_what_is_no_regular_file_is_named_at_once(damaged: Path, file: str, kind: str) -> None:
    path = damaged / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    assert [problem.file for problem in found_in(damaged)] == [file]
    with raises(BundleError):
        Bundle.open(damaged)


def test_a_manifest_that_can_not_be_read_is_a_problem(damaged: Path, tmp_path: Path) -> None:
    with (damaged / "manifest.json").open("r+b") as manifest:
        manifest.truncate(1 << 40)
    for path, reason in (
        (damaged, "more than 67,108,864 bytes"),
        (tmp_path / "none", "none: there is no such folder"),
        (tmp_path, "manifest.json: the manifest can't be read: No such file"),
    ):
        (problem,) = found_in(path)
        assert reason in problem.found


def test_a_damaged_file_does_not_hide_another(damaged: Path) -> None:
    flip_bit(damaged / "dense.faiss")
    (damaged / "tables" / "fact.npy").unlink()
    (damaged / "notes.txt").touch()
    edit_manifest(damaged, lambda record: record.update(ids_sha256="0" * 64))
    assert {problem.file for problem in found_in(damaged)} == {"dense.faiss", "tables/fact.npy", "notes.txt", "lucene"}


def test_a_link_out_of_the_bundle_is_a_problem(damaged: Path, tiny_path: Path, tmp_path: Path) -> None:
    (damaged / "tokenizer.json").unlink()
    (damaged / "tokenizer.json").symlink_to(tiny_path / "tokenizer.json")
    problem = found_at_once(damaged)
    assert (problem.file, problem.message) == ("tokenizer.json", "a link leaves the bundle")
    (damaged / "tables").rename(tmp_path / "tables")
    (damaged / "tables").symlink_to(tmp_path / "tables")
    linked = {problem.file for problem in found_in(damaged) if problem.message == "a link leaves the bundle"}
    assert linked == {"tokenizer.json", "tables/default.npy", "tables/fact.npy"}


def test_a_file_that_is_not_listed_is_a_problem(damaged: Path) -> None:
    """Lucene would open another commit in place of the listed one."""
    (damaged / "tables" / "more.npy").write_bytes(b"old")
    problem = found_at_once(damaged)
    assert (problem.file, problem.message) == ("tables/more.npy", "the manifest does not list it")
    (damaged / "tables" / "more.npy").rename(damaged / "lucene" / "segments_2")
    assert [problem.file for problem in found_in(damaged)] == ["lucene/segments_2", "lucene"]
    with raises(BundleError, naming="segments_2"):
        Bundle.open(damaged)


# ---- all hashes are right from here on: only what is inside the files is wrong ----


TABLE = "tables/fact.npy"
Damage = Callable[[Path], object]


def table(rows: npt.NDArray[np.generic]) -> Damage:
    return lambda bundle: np.save(bundle / TABLE, rows)


def with_value(file: str, row: int, value: float) -> Damage:
    """An array with one of this value in the place of all numbers of a row."""

    def damage(bundle: Path) -> None:
        rows = np.load(bundle / file)
        rows[row] = value
        np.save(bundle / file, rows)

    return damage


def tokenizer(vocab_size: int) -> Damage:
    texts = [document.full_text for document in tiny_documents()]
    return lambda bundle: train_tokenizer(bundle / "tokenizer.json", texts, vocab_size=vocab_size)


def vectors(count: int, dimension: int, row: int = 0, value: float | None = None) -> Damage:
    """Vectors of length 1, but for a row of one value."""
    rows = np.full((count, dimension), dimension**-0.5, dtype=np.float32)
    rows[row] = rows[row] if value is None else value
    index = faiss.IndexFlatIP(dimension)
    index.add(rows)
    return lambda bundle: faiss.write_index(index, str(bundle / "dense.faiss"))


def content(file: str, damaged: bytes) -> Damage:
    return lambda bundle: (bundle / file).write_bytes(damaged)


@pytest.mark.parametrize(
    ("damage", "file", "message", "expected", "found"),
    [
        (table(np.ones((401, 16), np.float16)), TABLE, "wrong shape (token ids, dimension)", "(400, 16)", "(401, 16)"),
        (table(np.ones((400, 16), np.float32)), TABLE, "wrong number type", "float16", "float32"),
        *(
            (table(rows), TABLE, "can't be opened", None, TABLE)
            for rows in (np.ones(5), np.ones((400, 16)), np.array([b"text"]))
        ),
        (with_value(TABLE, 17, np.nan), TABLE, "row 17 is not finite", None, ""),
        (tokenizer(399), "tokenizer.json", "tables/default.npy, tables/fact.npy", "400", "399"),
        (content("tokenizer.json", b"{}"), "tokenizer.json", "", None, "not a tokenizer.json"),
        *(
            (with_value("background.npy", 3, value), "background.npy", "", None, found)
            for value, found in ((np.nan, "length nan"), (0.0, "length 0"), (1e30, "length inf"))
        ),
        (vectors(119, 16), "dense.faiss", "wrong number of documents", "120", "119"),
        (vectors(120, 8), "dense.faiss", "wrong dimension", "16", "8"),
        *(
            (vectors(120, 16, row, value), "dense.faiss", f"document {row} has not the length 1", "0.05 to 2", "")
            for value in (np.nan, np.inf, -np.inf, 0.0, 1e-40, -1e-3, 0.7, 1e4, 3e38)
            for row in (0, 119)
        ),
        (content("dense.faiss", b"IxFI" + b"\xff" * 100), "dense.faiss", "", None, "not a Faiss index"),
        (lambda bundle: (bundle / "lucene" / "segments_1").unlink(), "lucene", "can't be opened", None, ""),
    ],
)
def test_what_is_wrong_inside_a_file_is_named(
    damaged: Path, damage: Damage, file: str, message: str, expected: str | None, found: str
) -> None:
    damage(damaged)
    resign(damaged)
    (problem,) = found_in(damaged)
    if file == TABLE and message.startswith("wrong"):
        found_at_once(damaged)
    assert (problem.file, problem.expected) == (file, expected or problem.expected)
    assert message in problem.message
    assert found in problem.found


def test_a_row_of_a_table_is_not_huge(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=20, table_dtype="float32")
    with_value(TABLE, 5, -2e9)(bundle.path)
    resign(bundle.path)
    (problem,) = found_in(bundle.path)
    assert (problem.file, problem.message) == (TABLE, "row 5 is not finite, or huge")


@pytest.mark.parametrize("layout", ["codes", "lists"])
def test_coarse_codes_have_about_the_length_1(tmp_path: Path, layout: Layout) -> None:
    assert found_in(make_tiny_bundle(tmp_path / "bundle", documents=700, layout=layout).path) == []


FIELDS: dict[str, FieldKind] = {"year": "number", "source": "keyword", "day": "date"}


@pytest.fixture(scope="module")
def with_fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [replace(one, more={"source": "a", "day": "2024-05-31"}) for one in tiny_documents(20)]
    return make_tiny_bundle(tmp_path_factory.mktemp("f") / "bundle", documents=documents, fields=FIELDS).path


@pytest.mark.parametrize(
    ("fields", "opens", "says"),
    [
        (FIELDS, True, None),
        ({"year": "number"}, True, None),
        (FIELDS | {"year": "keyword"}, False, 'the field "year" is not of its kind'),
        (FIELDS | {"source": "number"}, False, 'the field "source" is not of its kind'),
        (FIELDS | {"day": "number"}, True, "document 0 can't be served"),
        (FIELDS | {"title": "keyword"}, True, 'documents with a value of the field "title"'),
        (FIELDS | {"more": "keyword"}, True, None),  # no document has it
    ],
)
def test_the_fields_are_of_their_kinds(
    with_fields: Path, tmp_path: Path, fields: dict[str, FieldKind], opens: bool, says: str | None
) -> None:
    changed = copy_of(with_fields, tmp_path)
    edit_manifest(changed, lambda record: record.update(fields=fields))
    assert {problem.message for problem in found_in(changed)} >= ({says} if says else set())
    assert (found_in(changed) == []) == (says is None)
    if opens:
        Bundle.open(changed).sparse().close()
    else:
        with pytest.raises(BundleError, match="is not of its kind: expected"):
            Bundle.open(changed).sparse()


@pytest.mark.parametrize(("kind", "term"), [("words", "two words"), ("tokens", "400000"), ("tokens", "fox")])
def test_terms_of_another_vocabulary(tmp_path: Path, kind: VocabularyKind, term: str) -> None:
    """Ids that the tokenizer lacks are noticed, too."""
    bundle, documents = make_tiny_bundle(tmp_path / "b", documents=20, vocabulary=kind), tiny_documents(20)
    for file in (bundle.path / "lucene").iterdir():
        file.unlink()
    with ImpactIndexWriter(bundle.path / "lucene") as writer:
        rows = (np.arange(21), np.zeros(20, np.int32), np.ones(20, np.int32))
        writer.add([one.id for one in documents], [one.raw for one in documents], *rows, [term])
    resign(bundle.path)
    (problem,) = found_in(bundle.path)
    assert (problem.file, problem.message) == ("lucene", "a term is not of the vocabulary")
    assert repr(term) in problem.found


Lists = tuple[list[str], list[bytes]]


@pytest.mark.parametrize(
    ("change", "message", "expected", "found"),
    [
        (lambda ids, raws: (ids[:-1], raws[:-1]), "wrong number of documents", "120", "119"),
        (
            lambda ids, raws: ([*ids[1::-1], *ids[2:]], [*raws[1::-1], *raws[2:]]),
            *("ids or their order differ (SHA-256 of all ids)", "IDS", ""),
        ),
        (
            lambda ids, raws: (ids, [*raws[:3], *raws[4:2:-1], *raws[5:]]),
            *("document 3 is stored under another id", "greek", "'cjk'"),
        ),
        (lambda ids, raws: (ids, [*raws[:3], b"[1, 2", *raws[4:]]), "document 3 can't be served", "greek", ""),
    ],
)
def test_lucene_with_other_documents(
    damaged: Path, change: Callable[[list[str], list[bytes]], Lists], message: str, expected: str, found: str
) -> None:
    documents, ids_sha256 = tiny_documents(), Bundle.open(damaged).manifest.ids_sha256
    rewrite_lucene(damaged, *change([one.id for one in documents], [one.raw for one in documents]))
    problem = next(problem for problem in found_in(damaged) if problem.message == message)
    assert (problem.file, problem.expected) == ("lucene", expected.replace("IDS", ids_sha256))
    assert found in problem.found


def test_lucene_damaged_inside(damaged: Path) -> None:
    """The manifest was signed after the damage, but Lucene has checksums of its own."""
    (postings,) = (damaged / "lucene").glob("*.doc")
    flip_bit(postings)
    resign(damaged)
    (problem,) = found_in(damaged)
    assert problem.file == "lucene"
    assert postings.name in problem.found


def test_a_manifest_with_another_number_of_documents(damaged: Path) -> None:
    edit_manifest(damaged, lambda record: record.update(documents=7))
    problems = found_in(damaged)
    assert {problem.file for problem in problems} == {"dense.faiss", "lucene"}
    assert {(problem.expected, problem.found) for problem in problems} == {("7", "120")}
    bundle = Bundle.open(damaged)
    for opened in (bundle.dense, bundle.sparse):
        with raises(BundleError, naming="120"):
            opened()


def test_a_search_parameter_that_the_index_does_not_know(damaged: Path) -> None:
    edit_manifest(damaged, lambda record: record["dense"].update(parameters={"efSearch": 64.0}))
    (problem,) = found_in(damaged)
    assert problem.file == "dense.faiss"
    assert '"efSearch"' in problem.found
