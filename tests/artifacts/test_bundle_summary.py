"""What `build` says of a bundle."""

from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.pipeline.build import BundleSummary
from tests.support.tiny import make_tiny_bundle


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
