"""What `index` and `build` say of a bundle, and what a larger one would take, against larger ones that are built."""

from pathlib import Path

import faiss
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.size import part_sizes
from lightretriever.artifacts.dense.build import build_dense_index
from lightretriever.artifacts.pipeline.build import BundleSummary
from tests.support.commands import invoke, run, summary_of
from tests.support.tiny import make_tiny_bundle
from tests.support.vectors import random_unit


def total(bundle: Bundle, documents: int) -> int:
    return sum(part.bytes for part in part_sizes(bundle.manifest, documents))


def test_a_bundle_takes_what_it_takes(tiny_bundle: Bundle) -> None:
    manifest = tiny_bundle.manifest
    real = sum(one.bytes for one in manifest.files.values())
    assert total(tiny_bundle, manifest.documents) == pytest.approx(real, abs=4)


def test_a_larger_one_is_foretold(tmp_path: Path) -> None:
    small = make_tiny_bundle(tmp_path / "small", documents=1000)
    large = make_tiny_bundle(tmp_path / "large", documents=2000)
    real = sum(one.bytes for one in large.manifest.files.values())
    assert total(small, 2000) == pytest.approx(real, rel=0.1)


def test_above_the_bound_of_exact_search_the_dense_index_is_another_one(tiny_bundle: Bundle) -> None:
    count, dimension = 30_000, tiny_bundle.manifest.dimension
    assert tiny_bundle.manifest.dense is not None
    dense = tiny_bundle.manifest.dense.model_copy(update={"factory": "Flat"})
    manifest = tiny_bundle.manifest.model_copy(update={"dense": dense})
    real = faiss.serialize_index(build_dense_index(random_unit(count, dimension))).nbytes
    [part] = [part for part in part_sizes(manifest, count) if part.name == "dense index"]
    assert part.bytes == pytest.approx(real, rel=0.1)


def test_the_command(tiny_bundle: Bundle, tmp_path: Path) -> None:
    command = ["size", tiny_bundle.path, "--documents", 1_000_000]
    shown = run(*command)
    assert "1,000,000 would take" in shown
    assert "note: so few documents" in shown
    told = summary_of(*command)
    assert told["bytes"] == sum(part["bytes"] for part in told["parts"]) == total(tiny_bundle, 1_000_000)
    assert told["memory"] == sum(part["bytes"] for part in told["parts"] if part["in_memory"])
    assert invoke("size", tmp_path, "--documents", 5).exit_code != 0
    assert invoke(*command[:2], "--documents", 0).exit_code == 2


def test_it_names_the_terms_of_the_sparse_leg(tmp_path: Path) -> None:
    """The tiny bundle's words are those of the texts, by BM25, so none is added."""
    bundle = make_tiny_bundle(tmp_path / "words", vocabulary="words", dense=False)
    found = BundleSummary.of(bundle, 0)
    with bundle.sparse() as index:
        indptr, *_ = index.rows(0, index.count)
    assert (found.vocabulary, found.language, found.dimension) == ("words", "english", None)
    assert found.terms == pytest.approx(indptr[-1] / 120, abs=0.05)
    assert found.added == 0.0
    first, second, *_ = found.made()
    assert first.startswith(f"{bundle.path}: 120 documents, no dense leg, tasks default, fact; ")
    assert second == f"sparse leg: english words, {found.terms:,.0f} a document, 0% of them added to those of its text"


def test_it_counts_the_terms_that_the_text_lacks(tiny_bundle: Bundle) -> None:
    """Eight random tokens were added to each document, some of which it has."""
    found = BundleSummary.of(tiny_bundle, 0)
    assert (found.vocabulary, found.language, found.dimension) == ("tokens", None, 16)
    assert 5 < found.added * found.terms < 9  # also its first token, which a query has behind a space
    assert any("sparse leg: tokens, " in line for line in found.made())
