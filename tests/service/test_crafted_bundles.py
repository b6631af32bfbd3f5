"""Bundles whose hashes are right and whose content nobody here writes: a search answers, or says what is wrong."""

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.tampering import copy_of, edit_manifest, resign
from tests.support.wordings import raises


def not_finite(bundle: Path, value: float) -> None:
    """Write `value` into the vector of the first document."""
    index = faiss.read_index(str(bundle / "dense.faiss"))
    vectors = index.reconstruct_n(0, index.ntotal)
    vectors[0, 0] = value
    index.reset()
    index.add(vectors)
    faiss.write_index(index, str(bundle / "dense.faiss"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_vector_that_is_not_finite_is_like_no_query(tiny_bundle: Bundle, tmp_path: Path, value: float) -> None:
    bundle = copy_of(tiny_bundle.path, tmp_path)
    not_finite(bundle, value)
    resign(bundle)
    with client_of(Bundle.open(bundle), SETTINGS) as client:
        for body in ({"mode": "hybrid"}, {"mode": "dense"}, {"fusion": {"method": "rrf"}}, {"explain": True, "k": 3}):
            answer = client.post("/search", json={"query": "music player", "k": 100, **body})
            assert answer.status_code == 200, answer.text
            scores = [hit["dense"]["score"] for hit in answer.json()["hits"] if hit["dense"]]
            assert all(np.isfinite(scores))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_table_that_is_not_finite_fails_no_search(tiny_bundle: Bundle, tmp_path: Path, value: float) -> None:
    bundle = copy_of(tiny_bundle.path, tmp_path)
    task = tiny_bundle.manifest.tasks[tiny_bundle.manifest.default_task]
    assert task.file is not None
    rows = np.load(bundle / task.file)
    rows[:] = value
    np.save(bundle / task.file, rows)
    resign(bundle)
    with client_of(Bundle.open(bundle), SETTINGS) as client:
        for mode in ("dense", "hybrid"):
            answer = client.post("/search", json={"query": "music", "mode": mode})
            assert answer.status_code == 200 or answer.json()["kind"] == "unsearchable_query"


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record.update(name="x" * 5_000_000),
        lambda record: record["model"].update(name="x" * 10_001),
        lambda record: record["corpus"].update(licence="x" * 10_001),
        lambda record: next(iter(record["tasks"].values())).update(instruction="x" * 10_001),
    ],
)
def test_long_texts_of_a_manifest_are_refused(
    tiny_bundle: Bundle, tmp_path: Path, edit: Callable[[dict[str, object]], object]
) -> None:
    bundle = copy_of(tiny_bundle.path, tmp_path)
    edit_manifest(bundle, edit)
    with raises(BundleError, naming="manifest.json") as caught:
        Bundle.open(bundle)
    assert len(str(caught.value)) < 1_000
    assert verify_bundle(bundle)
