"""The manifest: what is written is read, and what can't be right is refused with a reason."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.bundle import Bundle
from artifacts.errors import BundleError
from artifacts.manifest import FORMAT_VERSION, Manifest, ids_sha256, parse_manifest, read_manifest, table_file


def record_of(bundle: Bundle) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(bundle.manifest.to_bytes())
    return record


def parse(record: object) -> Manifest:
    return parse_manifest(json.dumps(record).encode(), Path("manifest.json"))


def test_a_manifest_survives_writing_and_reading(tiny_bundle: Bundle) -> None:
    found = read_manifest(tiny_bundle.path)
    assert found == tiny_bundle.manifest
    assert found.to_bytes() == (tiny_bundle.path / "manifest.json").read_bytes()


def test_the_digest_is_that_of_the_file_and_covers_every_field(tiny_bundle: Bundle) -> None:
    content = (tiny_bundle.path / "manifest.json").read_bytes()
    assert tiny_bundle.manifest.digest == hashlib.sha256(content).hexdigest()
    record = record_of(tiny_bundle)
    record["files"]["dense.faiss"]["sha256"] = "0" * 64
    assert parse(record).digest != tiny_bundle.manifest.digest


def test_a_manifest_can_not_be_changed(tiny_bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="frozen"):
        tiny_bundle.manifest.documents = 3


def test_a_newer_format_is_refused_before_its_fields_are_looked_at() -> None:
    newer = {"format": "lightretriever-bundle", "format_version": FORMAT_VERSION + 1, "unheard_of": True}
    with pytest.raises(BundleError) as caught:
        parse(newer)
    assert "manifest.json: format_version is 2, this software reads up to 1." in str(caught.value)
    assert "Upgrade" in caught.value.remedy


@pytest.mark.parametrize("found", [None, 0, -1, "1", 1.5, True])
def test_a_format_version_that_is_none_is_refused(found: object) -> None:
    with pytest.raises(BundleError, match="format_version must be a positive integer, found"):
        parse({"format": "lightretriever-bundle", "format_version": found})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"m\.json: not JSON"):
        parse_manifest(content, Path("m.json"))


@pytest.mark.parametrize("record", [[], {}, 3, {"format": "other"}])
def test_what_is_no_manifest_is_refused(record: object) -> None:
    with pytest.raises(BundleError, match='"format" must be "lightretriever-bundle"'):
        parse(record)


PATHS = ["/etc/passwd", "../outside", "a/../../b", "a//b", "./a", "a/", "", "a\\b", "c:x", "a\0b", "manifest.json", "."]


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_leave_the_bundle_are_refused(tiny_bundle: Bundle, path: str) -> None:
    def in_files(record: dict[str, Any]) -> None:
        record["files"][path] = {"bytes": 1, "sha256": "0" * 64}

    def in_dense(record: dict[str, Any]) -> None:
        record["dense"]["file"] = path

    def in_sparse(record: dict[str, Any]) -> None:
        record["sparse"]["directory"] = path

    def in_tokenizer(record: dict[str, Any]) -> None:
        record["tokenizer"]["file"] = path

    def in_task(record: dict[str, Any]) -> None:
        record["tasks"]["fact"]["file"] = path

    for edit in (in_files, in_dense, in_sparse, in_tokenizer, in_task):
        record = record_of(tiny_bundle)
        edit(record)
        with pytest.raises(BundleError) as caught:
            parse(record)
        assert repr(path) in str(caught.value) or "listed in itself" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("documents", 0, "documents: Input should be greater than or equal to 1"),
        ("dimension", -1, "dimension: Input should be greater than or equal to 1"),
        ("vocab_size", "many", "vocab_size: Input should be a valid integer"),
        ("default_task", "none", "default_task 'none' is not among the tasks default, fact"),
        ("default_task", "../x", "is no task name"),
        ("ids_sha256", "abc", "ids_sha256: String should match pattern"),
        ("surprise", 1, "surprise: Extra inputs are not permitted"),
    ],
)
def test_fields_that_can_not_be_right_are_named(tiny_bundle: Bundle, field: str, value: object, message: str) -> None:
    record = record_of(tiny_bundle) | {field: value}
    with pytest.raises(BundleError) as caught:
        parse(record)
    assert message in str(caught.value)


@pytest.mark.parametrize("missing", ["model", "files", "tasks", "tokenizer", "name"])
def test_a_missing_field_is_named(tiny_bundle: Bundle, missing: str) -> None:
    record = record_of(tiny_bundle)
    del record[missing]
    with pytest.raises(BundleError, match=rf"{missing}: Field required"):
        parse(record)


@pytest.mark.parametrize("file", ["dense.faiss", "tokenizer.json", "tables/fact.npy"])
def test_a_file_that_is_used_must_be_listed(tiny_bundle: Bundle, file: str) -> None:
    record = record_of(tiny_bundle)
    del record["files"][file]
    with pytest.raises(BundleError, match=f"{file} is used but not listed"):
        parse(record)


def test_the_lucene_folder_must_be_listed(tiny_bundle: Bundle) -> None:
    record = record_of(tiny_bundle)
    record["files"] = {file: info for file, info in record["files"].items() if not file.startswith("lucene/")}
    with pytest.raises(BundleError, match="lucene is used but no file in it is listed"):
        parse(record)


def test_the_scales_of_an_int8_table_must_be_listed(tiny_bundle: Bundle) -> None:
    record = record_of(tiny_bundle)
    record["tasks"]["fact"]["dtype"] = "int8"
    with pytest.raises(BundleError, match=r"tables/fact\.scale\.npy is used but not listed"):
        parse(record)


def test_the_two_hashes_of_the_tokenizer_must_agree(tiny_bundle: Bundle) -> None:
    record = record_of(tiny_bundle)
    record["tokenizer"]["sha256"] = "0" * 64
    with pytest.raises(BundleError, match=r"tokenizer\.sha256 is 0000"):
        parse(record)


@pytest.mark.parametrize("task", ["", "a/b", "..", "a.scale", "-x", "x y", "ü", "a" * 65])
def test_names_that_can_not_be_files_are_no_tasks(task: str) -> None:
    with pytest.raises(ValueError, match="is no task name"):
        table_file(task)


def test_ids_are_hashed_in_order() -> None:
    assert ids_sha256(["a", "b"]) == hashlib.sha256(b"a\nb").hexdigest() != ids_sha256(["b", "a"])
    assert ids_sha256(iter(["ü"])) == hashlib.sha256("ü".encode()).hexdigest()


def test_a_missing_folder_and_a_missing_manifest_are_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="none: there is no such folder"):
        read_manifest(tmp_path / "none")
    with pytest.raises(BundleError, match=r"manifest\.json: the manifest can't be read: No such file"):
        read_manifest(tmp_path)
