"""Inverse document frequencies: the formula, the limits, and bundles that have them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.tokens.idf import count_tokens, load_idf, save_idf
from tests.support.tampering import copy_of, edit_manifest, resign
from tests.support.tiny import make_tiny_bundle, tiny_idf
from tests.support.wordings import raises


def ids(*tokens: int) -> npt.NDArray[np.int32]:
    return np.array(tokens, np.int32)


def test_by_hand() -> None:
    """Four documents, of which one has no token; token 0 in three, 1 in two, 2 (twice, in one document) in one, 3 in
    none."""
    found = count_tokens([ids(0, 1), ids(1, 0, 2, 2), ids(0), ids()], 4).idf()
    assert found.dtype == np.float32
    expected = [math.log(1 + (4 - df + 0.5) / (df + 0.5)) for df in (3, 2, 1)]
    np.testing.assert_allclose(found, [*expected, 1.0], rtol=1e-6)
    with raises(CorpusError):
        count_tokens([], 4)


def test_saved_and_loaded(tmp_path: Path) -> None:
    with raises(BundleError, naming="idf.npy"):
        load_idf(tmp_path / "idf.npy", 5)
    idf = count_tokens([ids(0, 1), ids(1)], 5).idf()
    save_idf(tmp_path / "idf.npy", idf)
    loaded = load_idf(tmp_path / "idf.npy", 5)
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, idf)


@pytest.mark.parametrize(
    "content",
    [
        *(np.ones(5, np.float64), np.ones((5, 1), np.float32)),
        *(np.array([1, 1, 0, 1, value], np.float32) for value in (1, np.nan, np.inf)),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: npt.NDArray[np.float32]) -> None:
    np.save(tmp_path / "idf.npy", content)
    with raises(BundleError, naming="idf.npy"):
        load_idf(tmp_path / "idf.npy", 5)
    with raises(BundleError, naming="idf.npy"):
        save_idf(tmp_path / "saved-idf.npy", content)
    assert not (tmp_path / "saved-idf.npy").exists()


@pytest.fixture(scope="module")
def idf_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", idf=True)


@pytest.fixture
def damaged(idf_bundle: Bundle, tmp_path: Path) -> Path:
    return copy_of(idf_bundle.path, tmp_path)


def test_the_bundle_holds_the_weights_and_says_so(idf_bundle: Bundle) -> None:
    assert (idf_bundle.manifest.sparse.query_weights, idf_bundle.manifest.sparse.idf) == ("idf_count", "idf.npy")
    assert verify_bundle(idf_bundle.path) == []
    found = Bundle.open(idf_bundle.path).idf()
    assert found is not None
    np.testing.assert_array_equal(found, tiny_idf(idf_bundle.tokenizer()))


def test_weights_that_can_not_be_used_are_refused(damaged: Path) -> None:
    np.save(damaged / "idf.npy", np.ones(399, np.float32))
    resign(damaged)
    with raises(BundleError, naming="(399,)"):
        Bundle.open(damaged)
    (problem,) = verify_bundle(damaged)
    assert "(399,)" in str(problem)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda r: r["sparse"].update(query_weights="count"), "'count'"),
        (lambda r: r["sparse"].pop("idf"), "idf file None"),
        (lambda r: r["files"].pop("idf.npy"), "idf.npy"),
        (lambda r: r["sparse"].update(idf="../idf.npy"), "../idf.npy"),
        (lambda r: r["sparse"].update(query_weights="tf"), "sparse.query_weights"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    damaged: Path, edit: Callable[[dict[str, Any]], object], named: str
) -> None:
    edit_manifest(damaged, edit)
    with raises(BundleError, naming=named):
        Bundle.open(damaged)


def test_weights_of_another_tokenizer_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.tiny.tiny_idf", lambda tokenizer: np.ones(399, np.float32))
    with raises(BundleError, naming="399"):
        make_tiny_bundle(tmp_path / "b", documents=12, idf=True)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
