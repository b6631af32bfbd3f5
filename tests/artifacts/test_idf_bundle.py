"""Bundles with IDF weights: written, opened, and found out when something is wrong with the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError

from tests.support.tampering import copy_of, edit_manifest, resign
from tests.support.tiny import make_tiny_bundle, tiny_batches, tiny_documents, tiny_idf


@pytest.fixture(scope="module")
def idf_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", idf=True)


@pytest.fixture
def damaged(idf_bundle: Bundle, tmp_path: Path) -> Path:
    return copy_of(idf_bundle.path, tmp_path)


def refused(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert caught.value.remedy
    return str(caught.value)


def test_the_bundle_holds_the_weights_and_says_so(idf_bundle: Bundle) -> None:
    assert (idf_bundle.manifest.sparse.query_weights, idf_bundle.manifest.sparse.idf) == ("idf_count", "idf.npy")
    assert verify_bundle(idf_bundle.path) == []
    found = Bundle.open(idf_bundle.path).idf()
    assert found is not None
    np.testing.assert_array_equal(found, tiny_idf(idf_bundle.tokenizer()))


def test_a_bundle_without_weights_is_as_it_was_before_there_were_any(tiny_bundle: Bundle) -> None:
    assert tiny_bundle.idf() is None
    assert tiny_bundle.manifest.sparse.query_weights == "count"
    assert b'"idf"' not in tiny_bundle.manifest.to_bytes()
    assert "idf.npy" not in tiny_bundle.manifest.files


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (np.ones(399, np.float32), r"float32 of shape (399,) instead of float32 of shape (400,)"),
        (np.ones(400, np.float64), "float64 of shape (400,) instead"),
        (np.full(400, np.nan, np.float32), "the IDF of token 0 is nan"),
        (np.zeros(400, np.float32), "the IDF of token 0 is 0.0"),
    ],
)
def test_weights_that_can_not_be_used_are_refused(damaged: Path, content: Any, found: str) -> None:
    np.save(damaged / "idf.npy", content)
    resign(damaged)
    message = "idf.npy: unusable IDF weights: expected 400 positive float32 values, found "
    assert f"{message}{found}" in refused(damaged)
    (problem,) = verify_bundle(damaged)
    assert str(problem).startswith(f"{message}{found}")


def test_a_missing_file_is_named(damaged: Path) -> None:
    (damaged / "idf.npy").unlink()
    assert "idf.npy: the file is missing" in refused(damaged)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r["sparse"].update(query_weights="count"), "query_weights 'count' does not go with the idf file"),
        (lambda r: r["sparse"].pop("idf"), "query_weights 'idf_count' does not go with the idf file None"),
        (lambda r: r["files"].pop("idf.npy"), "idf.npy is used but not listed"),
        (lambda r: r["sparse"].update(idf="../idf.npy"), "is not a plain relative path"),
        (lambda r: r["sparse"].update(query_weights="tf"), "sparse.query_weights: Input should be 'count'"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    damaged: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit_manifest(damaged, edit)
    assert message in refused(damaged)


def test_weights_of_another_tokenizer_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.tiny.tiny_idf", lambda tokenizer: np.ones(399, np.float32))
    with pytest.raises(BundleError, match="There are 399 IDF weights, but the tokenizer has 400 token ids"):
        make_tiny_bundle(tmp_path / "b", documents=12, idf=True)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_terms_are_kept_by_impact_alone(tmp_path: Path) -> None:
    """Decision 0018: IDF times impact would keep the rarest."""
    bundle = make_tiny_bundle(tmp_path / "b", documents=30, idf=True, top_k=3)
    tokenizer, one = bundle.tokenizer(), np.ones(1, np.float32)
    idf = tiny_idf(tokenizer).astype(np.float64)
    differs = 0
    with bundle.sparse() as index:
        (batch,) = tiny_batches(tiny_documents(30), tokenizer)
        for ordinal, (start, end) in enumerate(zip(batch.indptr[:-1], batch.indptr[1:], strict=True)):
            impacts = dict(zip(batch.terms[start:end].tolist(), batch.impacts[start:end].tolist(), strict=True))
            best = sorted(impacts, key=lambda term: (-impacts[term], term))[:3]
            differs += set(best) != set(sorted(impacts, key=lambda term: (-impacts[term] * idf[term], term))[:3])
            scores = {term: index.scores([str(term)], one, np.array([ordinal]))[0] for term in impacts}
            assert {term: score for term, score in scores.items() if score} == {term: impacts[term] for term in best}
    assert differs > 10  # else the rule by IDF times impact would pass as well
