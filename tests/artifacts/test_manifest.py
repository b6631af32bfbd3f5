"""The manifest: what is written is read, and what can't be right is refused with a reason."""

import json
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from lightretriever.artifacts.bundle.manifest import FORMAT_VERSION, Manifest, TaskName, parse_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError
from tests.support.tampering import sign
from tests.support.wordings import raises


def record_of(bundle: Bundle) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(bundle.manifest.to_bytes())
    return record


def parse(record: object) -> Manifest:
    return parse_manifest(json.dumps(record).encode(), Path("manifest.json"))


def test_the_digest_is_in_the_file_and_covers_every_field(tiny_bundle: Bundle) -> None:
    record, digest = record_of(tiny_bundle), tiny_bundle.manifest.digest
    assert record["manifest_sha256"] == digest == sign(record)["manifest_sha256"]
    assert parse(dict(reversed(record.items()))) == tiny_bundle.manifest
    for found in (None, 3, "", "0" * 64):
        with raises(BundleError, naming="manifest_sha256"):
            parse(record | {"manifest_sha256": found})
    record["files"]["dense.faiss"]["sha256"] = "0" * 64
    assert parse(sign(record)).digest != digest
    del record["manifest_sha256"]
    with raises(BundleError, naming="manifest_sha256"):
        parse(record)


def test_a_flipped_bit_in_any_byte_is_refused_or_changes_nothing(tiny_bundle: Bundle) -> None:
    content = tiny_bundle.manifest.to_bytes()
    harmless = set()
    for place, bit in enumerate(np.random.default_rng(0).integers(8, size=len(content)).tolist()):
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        try:
            found = parse_manifest(bytes(flipped), Path("m.json"))
        except BundleError:
            continue
        assert found == tiny_bundle.manifest
        harmless.add(content[place])
    assert harmless <= set(b" \n")  # one kind of white space became another


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(1, "`lightretriever build"), (FORMAT_VERSION - 1, "build"), (FORMAT_VERSION + 1, "Upgrade")],
)
def test_another_format_is_refused_before_its_fields_are_looked_at(version: int, remedy: str) -> None:
    with pytest.raises(BundleError) as caught:
        parse({"format": "lightretriever-bundle", "format_version": version, "unheard_of": True})
    assert f"manifest.json: format_version is {version}, this software reads 4." in str(caught.value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(content: bytes) -> None:
    with raises(BundleError, naming="m.json"):
        parse_manifest(content, Path("m.json"))


@pytest.mark.parametrize("found", [None, 0, "1", True])
def test_what_is_no_manifest_is_refused(found: object) -> None:
    with raises(BundleError, naming="format_version"):
        parse({"format": "lightretriever-bundle", "format_version": found})
    records: list[object] = [[], {}, 3, {"format": "other", "format_version": found}]
    for record in records:
        with raises(BundleError, naming="lightretriever-bundle"):
            parse(record)


PATHS = ["/etc/passwd", "../outside", "a/../../b", "a//b", "./a", "a/", "", "a\\b", "c:x", "a\0b", "manifest.json", "."]


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_leave_the_bundle_are_refused(tiny_bundle: Bundle, path: str) -> None:
    for part, key, value in (
        ("files", path, {"bytes": 1, "sha256": "0" * 64, "xxh3": "0" * 32}),
        *((part, "file", path) for part in ("dense", "tokenizer", "fact")),
        *(("sparse", part, path) for part in ("directory", "idf")),
    ):
        record = record_of(tiny_bundle)
        (record["tasks"] if part == "fact" else record)[part][key] = value
        with pytest.raises(BundleError) as caught:
            parse(record)
        assert repr(path) in str(caught.value) or "listed in itself" in str(caught.value)


def without_lucene(record: dict[str, Any]) -> None:
    record["files"] = {file: info for file, info in record["files"].items() if not file.startswith("lucene/")}


@pytest.mark.parametrize(
    "edit",
    [
        lambda r: r.update(documents=0),
        lambda r: r.update(dimension=-1),
        lambda r: r.update(vocab_size="many"),
        lambda r: r.update(default_task="none"),
        lambda r: r.update(default_task="../x"),
        lambda r: r.update(ids_sha256="abc"),
        lambda r: r.update(surprise=1),
        *(methodcaller("pop", key) for key in ("model", "files", "tasks", "tokenizer", "name")),
        lambda r: r["files"].pop("dense.faiss"),
        lambda r: r["files"].pop("tokenizer.json"),
        lambda r: r["files"].pop("tables/fact.npy"),
        without_lucene,
        lambda r: r["tasks"]["fact"].update(dtype="int8"),
        lambda r: r["tokenizer"].update(sha256="0" * 64),
        lambda r: r["sparse"].update(vocabulary="words"),
        lambda r: r["sparse"].update(language="german"),
        lambda r: r["sparse"].update(vocabulary="words", language="klingon"),
        lambda r: r["sparse"].update(vocabulary="letters"),
        lambda r: r["sparse"].update(accelerate=True),
        lambda r: r["sparse"].update(query_weights="tf"),
        lambda r: r["sparse"].update(query_weights="idf_count"),
        lambda r: r["sparse"].update(query_weights="idf_count", idf="idf.npy"),
        lambda r: r["sparse"].update(idf="tokenizer.json"),
        lambda r: r.update(fusion={"dense": 0.5, "bm25": 0.5}),
        lambda r: r.update(name="x" * 5_000_000),
        lambda r: r["tasks"]["fact"].update(instruction="x" * 10_001),
    ],
)
def test_what_can_not_be_right_is_named(tiny_bundle: Bundle, edit: Callable[[dict[str, Any]], object]) -> None:
    record = record_of(tiny_bundle)
    edit(record)
    with raises(BundleError, naming="manifest.json") as caught:
        parse(record)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("task", ["", "a/b", "..", "a.scale", "-x", "x y", "ü", "a\n", "a" * 65])
def test_names_that_can_not_be_files_are_no_tasks(task: str) -> None:
    with raises(ValueError, naming="should match pattern"):
        TypeAdapter(TaskName).validate_python(task)
