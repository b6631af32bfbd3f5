"""Inverse document frequencies: the formula, the limits, and files that are refused."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.tokens.idf import idf_weights, load_idf, save_idf


def ids(*tokens: int) -> npt.NDArray[np.int32]:
    return np.array(tokens, np.int32)


def test_by_hand() -> None:
    """Three documents; token 0 in all, 1 in two, 2 (twice, in one document) in one, 3 in none."""
    found = idf_weights([ids(0, 1), ids(1, 0, 2, 2), ids(0)], 4)
    assert found.dtype == np.float32
    expected = [math.log(1 + (3 - df + 0.5) / (df + 0.5)) for df in (3, 2, 1, 0)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[3] == pytest.approx(math.log(2 * 3 + 2))


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=30))
def test_rarer_weighs_more_and_all_are_positive(documents: list[list[int]]) -> None:
    found = idf_weights((ids(*tokens) for tokens in documents), 10)
    frequencies = [sum(token in tokens for tokens in documents) for token in range(10)]
    assert np.isfinite(found).all()
    assert (found > 0).all()
    for token, frequency in enumerate(frequencies):
        for other, more in enumerate(frequencies):
            assert (found[token] > found[other]) == (frequency < more)


def test_a_document_without_tokens_counts() -> None:
    assert idf_weights([ids(), ids(0)], 1)[0] == pytest.approx(math.log(2))


def test_bad_documents() -> None:
    with pytest.raises(CorpusError, match="no documents"):
        idf_weights([], 4)
    with pytest.raises(ValueError, match=r"token id 4 is outside the vocabulary's 0\.\.3"):
        idf_weights([ids(0, 4)], 4)
    with pytest.raises(ValueError, match="token id -1 is outside"):
        idf_weights([ids(0, -1)], 4)


def test_saved_and_loaded(tmp_path: Path) -> None:
    idf = idf_weights([ids(0, 1), ids(1)], 5)
    save_idf(tmp_path / "idf.npy", idf)
    loaded = load_idf(tmp_path / "idf.npy", 5)
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, idf)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones(4, np.float32), r"float32 of shape \(4,\) instead of float32 of shape \(5,\), one IDF per token"),
        (np.ones(5, np.float64), r"float64 of shape \(5,\) instead"),
        (np.ones((5, 1), np.float32), r"float32 of shape \(5, 1\) instead"),
        (np.array([1, 1, 0, 1, 1], np.float32), r"IDF of token 2 is 0\.0; it must be finite and positive"),
        (np.array([1, -1, 1, 1, 1], np.float32), r"IDF of token 1 is -1\.0"),
        (np.array([1, 1, 1, 1, np.nan], np.float32), "IDF of token 4 is nan"),
        (np.array([np.inf, 1, 1, 1, 1], np.float32), "IDF of token 0 is inf"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: npt.NDArray[np.float32], message: str) -> None:
    np.save(tmp_path / "idf.npy", content)
    with pytest.raises(BundleError, match=rf"idf\.npy: .*{message}"):
        load_idf(tmp_path / "idf.npy", 5)


def test_what_can_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="finite and positive"):
        save_idf(tmp_path / "idf.npy", np.array([1, np.nan], np.float32))
    assert not (tmp_path / "idf.npy").exists()


def test_missing_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="the file is missing"):
        load_idf(tmp_path / "idf.npy", 5)
    (tmp_path / "idf.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(BundleError, match="not a NumPy array"):
        load_idf(tmp_path / "idf.npy", 5)
    with (tmp_path / "idf.npy").open("wb") as file:
        np.savez(file, idf=np.ones(5, np.float32))
    with pytest.raises(BundleError, match="it is an archive, as numpy"):
        load_idf(tmp_path / "idf.npy", 5)
