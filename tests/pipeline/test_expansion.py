"""Document expansion by the token table: the formula, what ranking it aims at, and a bundle that has it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from lightretriever.artifacts.bundle.parts import ExpansionInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cluster.schema import IndexMeta
from lightretriever.artifacts.errors import RecipeError, ResumeError
from lightretriever.artifacts.pipeline.bm25_impacts import ImpactRow
from lightretriever.artifacts.pipeline.expansion import Expansion
from lightretriever.artifacts.pipeline.later import LaterDocuments
from lightretriever.artifacts.pipeline.recipe import load_recipe
from lightretriever.service.cli import app
from typer.testing import CliRunner

from tests.pipeline.test_growing import write_recipe

V, D, N = 50, 8, 40


def random_corpus(seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], list[ImpactRow]]:
    """A table (V, D), vectors (N, D) of length 1, and BM25 impacts."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(V, D)).astype(np.float32)
    vectors = random.normal(size=(N, D)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sparse = list[ImpactRow]()
    for _ in range(N):
        terms = np.sort(random.choice(V, 6, replace=False)).astype(np.int32)
        sparse.append((terms, random.integers(1, 400, 6).astype(np.uint16)))
    return table, vectors, sparse


def test_a_document_by_hand() -> None:
    """The mean is (0.5, 0.5). For the document (1, 0), with term 1 alone, z is (-0.5, 1, 0.25)."""
    table = np.array([[-1, 0], [1, -1], [0, -0.5]], np.float32)
    mean = np.array([0.5, 0.5], np.float32)
    document = (np.array([[1, 0]], np.float32), [(np.array([1], np.int32), np.array([200], np.uint16))])
    expansion = Expansion.of(ExpansionInfo(terms=1, weight=0.5), table, mean, *document)
    assert expansion.unit == 200  # mean impact 200, root mean square of z 1
    [(terms, impacts)] = expansion.impacts(*document)
    assert (terms.tolist(), impacts.tolist()) == ([1], [300])
    more = Expansion(ExpansionInfo(terms=3, weight=0.5), table, mean, 200)
    [(terms, impacts)] = more.impacts(*document)
    assert (terms.tolist(), impacts.tolist()) == ([1, 2], [300, 25])  # no term below the mean is added
    assert (terms.dtype.name, impacts.dtype.name) == ("int32", "uint16")


def test_a_document_s_own_term_still_finds_it() -> None:
    table, mean = np.array([[-5.0], [0.0]], np.float32), np.zeros(1, np.float32)
    expansion = Expansion(ExpansionInfo(terms=1), table, mean, 100)
    own = [(np.array([0], np.int32), np.array([30], np.uint16))]
    assert [row[1].tolist() for row in expansion.impacts(np.ones((1, 1), np.float32), own)] == [[1]]


@pytest.mark.parametrize("seed", range(3))
def test_with_all_terms_an_impact_is_the_sum_of_both_parts(seed: int) -> None:
    """But for terms that a document lacks and that are below the mean, and for own ones, which keep at least 1."""
    table, vectors, sparse = random_corpus(seed)
    mean = vectors.mean(axis=0)
    expansion = Expansion.of(ExpansionInfo(terms=V, weight=2.0), table, mean, vectors, sparse)
    plain, found = np.zeros((N, V)), np.zeros((N, V))
    for row, (terms, impacts) in enumerate(sparse):
        plain[row, terms] = impacts
    for row, (terms, impacts) in enumerate(expansion.impacts(vectors, sparse)):
        assert (np.diff(terms) > 0).all()
        found[row, terms] = impacts
    z = (vectors - mean) @ table.T
    exact = plain + 2 * expansion.unit * z
    kept = exact > 0.5
    np.testing.assert_allclose(found[kept & (z > 0)], exact[kept & (z > 0)], atol=0.51)
    own = plain > 0
    np.testing.assert_allclose(found[own], np.maximum(exact[own], 1), atol=0.51)
    assert not found[~own & (z <= 0)].any()


def test_fewer_terms_are_those_of_the_highest_weight() -> None:
    table, vectors, sparse = random_corpus(5)
    mean = vectors.mean(axis=0)
    few, all_of_them = (
        Expansion.of(ExpansionInfo(terms=count), table, mean, vectors, sparse).impacts(vectors, sparse)
        for count in (7, V)
    )
    for (own, _), (kept, impacts), (terms, every) in zip(sparse, few, all_of_them, strict=True):
        added = ~np.isin(kept, own)
        left_out = every[~np.isin(terms, kept)]
        assert added.sum() <= 7
        assert impacts[added].min(initial=65_535) >= left_out.max(initial=0)
        np.testing.assert_array_equal(impacts, every[np.isin(terms, kept)])


def test_a_corpus_without_terms_or_directions_is_left_as_it_is() -> None:
    table, vectors, _ = random_corpus(1)
    nothing = [(np.empty(0, np.int32), np.empty(0, np.uint16))] * N
    empty = Expansion.of(ExpansionInfo(), table, vectors.mean(axis=0), vectors, nothing)
    assert (empty.unit, {len(terms) for terms, _ in empty.impacts(vectors, nothing)}) == (0, {0})
    same, one = np.repeat(vectors[:1], 2, axis=0), (np.array([3], np.int32), np.array([9], np.uint16))
    flat = Expansion.of(ExpansionInfo(), table, vectors[0], same, [one, one])
    assert [row[1].tolist() for row in flat.impacts(same, [one, one])] == [[9], [9]]


def test_what_was_measured_is_kept_for_documents_that_come_later(tmp_path: Path) -> None:
    table, vectors, sparse = random_corpus(2)
    expansion = Expansion.of(ExpansionInfo(terms=5), table, vectors.mean(axis=0), vectors, sparse)
    expansion.save(tmp_path, "corpus one")
    later = Expansion.read(ExpansionInfo(terms=5), table, tmp_path, "corpus one")
    for one, other in zip(later.impacts(vectors, sparse), expansion.impacts(vectors, sparse), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ResumeError, match="another corpus"):
        Expansion.read(ExpansionInfo(terms=5), table, tmp_path, "corpus two")
    with pytest.raises(ResumeError, match="another token table"):
        Expansion.read(ExpansionInfo(terms=5), table + 1, tmp_path, "corpus one")


def run(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception


def edited(recipe: Path, **sections: Any) -> Path:
    recipe.write_text(yaml.safe_dump(yaml.safe_load(recipe.read_text()) | sections))
    return recipe


def test_a_bundle_finds_documents_by_terms_that_they_lack(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "expand")
    run("build", recipe)
    run("index", edited(recipe, expand=None), "--output", tmp_path / "plain")
    bundle, plain = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "plain")
    assert verify_bundle(bundle.path) == []
    assert bundle.manifest.sparse.expansion == ExpansionInfo(terms=16, weight=1.5)
    assert plain.manifest.sparse.expansion is None
    one, other = bundle.sparse(), plain.sparse()
    try:
        table = bundle.table("web").rows(np.arange(bundle.manifest.vocab_size))
        vectors = bundle.dense().vectors(np.arange(one.count))
        read = [other.terms(row) for row in range(other.count)]
        rows = [(terms, impacts.astype(np.uint16)) for terms, impacts in read]
        mean = vectors.mean(axis=0)
        expected = Expansion.of(ExpansionInfo(terms=16), table, mean, vectors, rows).impacts(vectors, rows)
        added = 0
        for row, (terms, impacts) in enumerate(expected):
            found, there = one.terms(row)
            common, here, wanted = np.intersect1d(found, terms, return_indices=True)
            added += len(found) - len(rows[row][0])
            assert len(common) >= 0.9 * len(terms)  # the table and the vectors were rounded to 16 bits
            np.testing.assert_allclose(there[here], impacts[wanted], rtol=0.05, atol=5)
        assert added > one.count
    finally:
        one.close()
        other.close()


def test_documents_that_come_later_need_the_settings_of_the_bundle(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "expand")
    run("build", recipe)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    meta = IndexMeta.of(manifest, "lucene", large=True)
    later = LaterDocuments.open(load_recipe(recipe), manifest, meta)
    [document] = [one for number, one in enumerate(load_recipe(recipe).corpus.open()) if number == 5]
    index = Bundle.open(tmp_path / "bundle").sparse()
    try:
        terms, impacts = index.terms(5)
    finally:
        index.close()
    [(_, features)] = later.encode([document])
    found = {term: features.get(str(term), 0) + 512 * features.get(f"{term}h", 0) for term in terms.tolist()}
    np.testing.assert_allclose(list(found.values()), impacts, atol=1)
    for other in (None, {"terms": 16, "weight": 1.0}):
        with pytest.raises(ResumeError, match=r"was made with expand terms=16 weight=1\.5, the recipe has"):
            LaterDocuments.open(load_recipe(edited(recipe, expand=other)), manifest, meta)


@pytest.mark.parametrize("expand", [{"terms": 16}, None])
def test_a_later_document_without_terms_is_encoded(tmp_path: Path, expand: dict[str, int] | None) -> None:
    """One whose only token is unknown has a vector, and just the terms that the table adds."""
    recipe = edited(write_recipe(tmp_path, "expand"), expand=expand)
    run("build", recipe)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    later = LaterDocuments.open(load_recipe(recipe), manifest, IndexMeta.of(manifest, "lucene", large=True))
    known = next(iter(load_recipe(recipe).corpus.open()))
    khmer = replace(known, id="khmer", title="", text="ខ្មែរ")
    assert not later.encoder.tokenizer.query_ids(khmer.full_text)
    [(vector, features), (_, others)] = later.encode([khmer, known])
    np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-5)
    assert (features == {}) == (expand is None)
    assert others
    [(alone, same)] = later.encode([khmer])
    np.testing.assert_allclose(alone, vector, atol=1e-6)
    assert same == features


@pytest.mark.parametrize("kind", ["learned", "both"])
def test_only_bm25_impacts_are_expanded(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RecipeError, match=f"expand: the impacts are {kind}, and only BM25 impacts are expanded"):
        run("build", edited(write_recipe(tmp_path, kind), expand={}))


def test_terms_of_another_model_have_no_rows(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="expand can't be set beside sparse"):
        run("build", edited(write_recipe(tmp_path, "paired"), expand={}))
