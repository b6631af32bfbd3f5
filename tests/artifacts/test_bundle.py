"""Writing and opening bundles: what goes in comes out, whole or not at all; and manifests that can't be right."""

import dataclasses
import json
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from xxhash import xxh3_128

from lightretriever.artifacts.bundle import reader
from lightretriever.artifacts.bundle.batches import EncodedBatch, check_batch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.manifest import (
    FORMAT_VERSION,
    CorpusInfo,
    Manifest,
    MatchThresholds,
    ModelInfo,
    SparseInfo,
    TaskName,
    parse_manifest,
    read_manifest,
)
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.bundle.writer import (
    BundleContent,
    TableInput,
    query_vectors,
    unrelated_queries,
    write_bundle,
)
from lightretriever.artifacts.dense.index import background_ordinals
from lightretriever.artifacts.errors import BundleError, CorpusError, LightRetrieverError, RecipeError
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support import tiny
from tests.support.meaning import TEXTS, make_meaningful_bundle
from tests.support.tampering import copy_of, edit_manifest, flip_bit, sign
from tests.support.tiny import make_tiny_bundle, tiny_batches, tiny_documents, train_tokenizer
from tests.support.wordings import raises

Rows = npt.NDArray[np.float32]
Write = Callable[..., Bundle]

HIDDEN, DIMENSION = 24, 16


LEARNED = SparseInfo(vocabulary="tokens", impacts="learned")


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(path, [document.full_text for document in tiny_documents()])
    return path


@pytest.fixture(scope="module")
def batches(tokenizer_file: Path) -> list[EncodedBatch]:
    tokenizer = TextTokenizer.from_file(tokenizer_file)
    return list(tiny_batches(tiny_documents(30), tokenizer, dimension=HIDDEN, batch_size=13))


@pytest.fixture(scope="module")
def rows(tokenizer_file: Path) -> Rows:
    vocab_size = TextTokenizer.from_file(tokenizer_file).vocab_size
    return np.random.default_rng(0).standard_normal((vocab_size, HIDDEN)).astype(np.float32)


@pytest.fixture
def write(tokenizer_file: Path, batches: list[EncodedBatch], rows: Rows) -> Write:
    def _write(target: Path, **changes: object) -> Bundle:
        arguments: dict[str, Any] = {
            "name": "b",
            "model": ModelInfo(name="m", hidden_size=HIDDEN, trained=True),
            "corpus": CorpusInfo(name="c"),
            "tokenizer_file": tokenizer_file,
            "lowercase": True,
            "tables": {"default": TableInput("Find it", rows)},
            "default_task": "default",
            "table_dtype": "float32",
            "documents": iter(batches),
            "dimension": DIMENSION,
            "sparse": LEARNED,
        }
        overwrite = bool(changes.pop("overwrite", False))
        return write_bundle(target, BundleContent(**(arguments | changes)), overwrite=overwrite)

    return _write


def test_vectors_and_rows_are_cut_to_the_dimension(
    write: Write, batches: list[EncodedBatch], rows: Rows, tmp_path: Path
) -> None:
    bundle = write(tmp_path / "b")
    np.testing.assert_array_equal(bundle.table("default").rows(np.arange(9)), rows[:9, :DIMENSION])
    prefix = np.concatenate([batch.dense for batch in batches])[:, :DIMENSION]
    expected = prefix / np.linalg.norm(prefix, axis=1, keepdims=True)
    np.testing.assert_allclose(bundle.dense().vectors(np.arange(30)), expected, atol=1e-6)


def test_the_background_is_evenly_spaced(tiny_bundle: Bundle, tmp_path: Path) -> None:
    background = tiny_bundle.background()
    assert background is not None
    np.testing.assert_allclose(background, tiny_bundle.dense().vectors(np.arange(120)), atol=1e-6)
    assert background_ordinals(1000).tolist() == [place * 1000 // 256 for place in range(256)]
    assert make_tiny_bundle(tmp_path / "b", dense=False).background() is None


def test_queries_lay_out_the_index_and_choose_its_parameters(tmp_path: Path) -> None:
    queries = ["plays music", "a library", "in the terminal", "for numbers"] * 600
    bundle = make_tiny_bundle(tmp_path / "b", documents=90, layout="lists", queries=queries)
    dense = bundle.manifest.dense
    assert dense is not None
    assert dense.factory.startswith("Queries,IVF8,")
    assert sorted(dense.parameters) == ["k_factor_rf", "nprobe"]
    assert dense.recall is not None
    assert 0.3 < dense.recall < 1
    assert verify_bundle(bundle.path) == []
    assert len(bundle.dense().search(np.ones(16, dtype=np.float32), 5)[0]) == 5


def changed(batches: list[EncodedBatch], number: int, changes: dict[str, Any]) -> list[EncodedBatch]:
    return [dataclasses.replace(batch, **changes) if i == number else batch for i, batch in enumerate(batches)]


def test_the_manifest_names_all_fields_of_all_documents(
    write: Write, batches: list[EncodedBatch], tmp_path: Path
) -> None:
    documents = list(batches[1].documents)
    documents[3] = json.dumps({**json.loads(documents[3]), "rare": 1}).encode()
    bundle = write(tmp_path / "b", documents=changed(batches, 1, {"documents": documents}))
    assert bundle.manifest.field_names == ["_id", "rare", "text", "title", "year"]


@pytest.mark.parametrize(
    "changes", [{"ids": ["cjk", *(f"d{n}" for n in range(12))]}, {"dense": np.full((13, 24), np.nan)}]
)
def test_a_document_that_could_not_be_served_is_an_error(
    write: Write, batches: list[EncodedBatch], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """One with the id of another, and one without a vector."""
    with raises(CorpusError):
        write(tmp_path / "b", documents=changed(batches, 1, changes))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_batch_does_not_matter(write: Write, batches: list[EncodedBatch], tmp_path: Path) -> None:
    none = EncodedBatch([], [], np.zeros((0, HIDDEN)), np.zeros(1, dtype=np.int64), np.zeros(0, int), np.zeros(0, int))
    bundle = write(tmp_path / "b", documents=[none, batches[0], none, *batches[1:], none])
    assert bundle.manifest.documents == 30
    assert verify_bundle(bundle.path) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"documents": []}, CorpusError),
        ({"dimension": 0}, RecipeError),
        ({"dimension": HIDDEN + 1}, RecipeError),
        ({"idf": np.ones(9, np.float32)}, BundleError),
        ({"tokenizer_file": Path("/nowhere/tokenizer.json")}, BundleError),
        ({"tables": {"default": TableInput("", np.ones((9, HIDDEN), np.float32))}}, BundleError),  # another tokenizer's
    ],
)
def test_settings_that_do_not_fit_are_errors(
    write: Write, tmp_path: Path, changes: dict[str, Any], error: type[LightRetrieverError]
) -> None:
    with raises(error):
        write(tmp_path / "b", **changes)
    assert list(tmp_path.iterdir()) == []


def test_lucene_s_own_lock_file_does_not_matter(tiny_path: Path, tmp_path: Path) -> None:
    path = copy_of(tiny_path, tmp_path)
    (path / "lucene" / "write.lock").touch()
    assert Bundle.open(path).manifest.name == "tiny"


@pytest.mark.parametrize("buffer", [7, 2**23])
def test_damage_is_found_by_the_fast_hash(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    monkeypatch.setattr(reader, "_BUFFER", buffer)
    path = copy_of(tiny_path, tmp_path)
    files = Bundle.open(path).manifest.files
    assert {file: info.xxh3 for file, info in files.items()} == {
        file: xxh3_128((path / file).read_bytes()).hexdigest() for file in files
    }
    Bundle.open(path).check_hashes()
    flip_bit(path / "dense.faiss")
    with raises(BundleError, naming="dense.faiss"):
        Bundle.open(path).check_hashes()


def test_the_tokenizer_of_another_model_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    path = copy_of(tiny_path, tmp_path)
    file = path / "tokenizer.json"
    train_tokenizer(file, [document.full_text for document in tiny_documents()], vocab_size=380)
    edit_manifest(path, lambda record: record["files"]["tokenizer.json"].update(bytes=file.stat().st_size))
    with raises(BundleError, naming="tokenizer.json"):
        Bundle.open(path).tokenizer()


def batch_of(rows: list[dict[int, int]]) -> EncodedBatch:
    dense = np.random.default_rng(0).standard_normal((len(rows), 8)).astype(np.float32)
    return tiny.batch_of([f"d{i}" for i in range(len(rows))], [b"{}"] * len(rows), dense, rows)


def rows_of(batch: EncodedBatch) -> list[list[tuple[int, int]]]:
    pairs = list(zip(batch.terms.tolist(), batch.impacts.tolist(), strict=True))
    return [pairs[batch.indptr[i] : batch.indptr[i + 1]] for i in range(len(batch.indptr) - 1)]


@given(
    st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 65_535) | st.integers(1, 3), max_size=12), max_size=8),
    st.none() | st.integers(1, 14),
)
def test_top_terms_are_those_of_highest_impact_then_lowest_id(rows: list[dict[int, int]], top_k: int | None) -> None:
    expected = [sorted(sorted(row.items(), key=lambda pair: (-pair[1], pair[0]))[:top_k]) for row in rows]
    kept = keep_top_terms(batch_of(rows), top_k)
    assert rows_of(kept) == expected
    assert kept.indptr.dtype == np.int64
    assert kept.terms.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_prefix_is_normalised_again_in_single_precision(dtype: type[np.floating[Any]]) -> None:
    batch = batch_of([{1: 1}] * 5)
    batch = dataclasses.replace(batch, dense=batch.dense.astype(dtype))
    prefix = dense_prefix(batch, 3, first=0)
    assert prefix.shape == (5, 3)
    assert prefix.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(prefix, axis=1), 1, atol=1e-6)
    cut = batch.dense[:, :3].astype(np.float32)
    np.testing.assert_allclose(prefix, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_without_a_direction_are_refused(value: float) -> None:
    batch = batch_of([{1: 1}] * 5)
    batch.dense[3, :4] = value
    with raises(CorpusError, naming="d3"):
        dense_prefix(batch, 4, first=100)


@pytest.mark.parametrize(
    "change",
    [
        {"terms": np.array([1, 2, 50])},
        {"terms": np.array([-1, 2, 3])},
        {"terms": np.array([2, 2, 3])},
        {"impacts": np.array([1, 0, 5])},
        {"impacts": np.array([1, 65_536, 5])},
    ],
)
def test_terms_and_impacts_out_of_bounds_are_refused(change: dict[str, Any]) -> None:
    batch = batch_of([{1: 1, 2: 2}, {1: 3}])
    check_batch(batch, 50)
    with raises(CorpusError, naming="d"):
        check_batch(dataclasses.replace(batch, **change), 50)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_meaningful_bundle(tmp_path_factory.mktemp("meaning") / "bundle")


def best_scores(bundle: Bundle, queries: list[np.ndarray]) -> list[float]:
    table, index = bundle.table("search"), bundle.dense()
    return [float(index.search(vector, 1)[1][0]) for vector in query_vectors(table, queries)]


def test_the_manifest_has_the_scores_that_few_unrelated_queries_reach_and_related_ones_do(bundle: Bundle) -> None:
    match = bundle.manifest.tasks["search"].match
    assert match is not None
    scores = np.array(best_scores(bundle, unrelated_queries(bundle.tokenizer())))
    assert match.queries == len(scores) == 1000
    assert np.mean(scores >= match.weak) == pytest.approx(0.05, abs=0.01)
    assert np.mean(scores >= match.strong) == pytest.approx(0.005, abs=0.002)
    related = best_scores(bundle, list(bundle.tokenizer().as_queries(title for title, _ in TEXTS)))
    assert np.mean(np.array(related) >= match.weak) >= 0.9
    assert read_manifest(bundle.path).tasks["search"].match == match
    assert verify_bundle(bundle.path) == []


def test_the_same_tokenizer_gives_the_same_queries_of_whole_words(bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer()
    queries = unrelated_queries(tokenizer)
    assert [query.tolist() for query in queries] == [query.tolist() for query in unrelated_queries(tokenizer)]
    assert {len(query) for query in queries} == {2, 4, 6, 8}
    assert all(tokenizer.token(int(token)).isalpha() for query in queries for token in query)


def test_a_small_vocabulary_gives_no_thresholds(tmp_path: Path) -> None:
    tiny, few = make_tiny_bundle(tmp_path / "tiny", documents=20), make_meaningful_bundle(tmp_path / "b", invented=50)
    for bundle in (tiny, few):
        assert unrelated_queries(bundle.tokenizer()) == []
        assert [task.match for task in bundle.manifest.tasks.values()] == [None] * len(bundle.manifest.tasks)
        assert b'"match"' not in bundle.manifest.to_bytes()


@pytest.mark.parametrize(("weak", "strong"), [(0.5, 0.4), (float("nan"), 0.5), (-2.0, 0.5), (0.2, 7.0)])
def test_impossible_thresholds_are_refused(weak: float, strong: float) -> None:
    with pytest.raises(ValidationError):
        MatchThresholds(weak=weak, strong=strong, queries=1000)


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
        lambda r: [r["files"].pop(file) for file in [*r["files"]] if file.startswith("lucene/")],
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
