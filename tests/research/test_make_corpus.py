"""A real bundle of a tiny model, and a larger one drawn after it."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from research.speed.make_corpus import main
from tests.support.commands import run
from tests.support.judged import write_queries
from tests.support.models import save_model
from tests.support.recipes import save, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a bundle that was built."""
    folder = tmp_path_factory.mktemp("real")
    file = write_recipe(
        folder,
        save_model(folder / "model", "llama"),
        documents=60,
        tasks={"web": "find pages"},
        encode={"max_length": 32, "top_k": 40},
        index={"dimension": 8, "vocabulary": "tokens", "top_k": 25},
    )
    run("build", file)
    return file


def test_a_larger_bundle_after_a_real_one(recipe: Path, tmp_path: Path) -> None:
    queries = write_queries(tmp_path / "queries", ["plays music from the terminal"]).parent
    command = [str(recipe), str(tmp_path / "large"), "--documents", "700", "--seed", "3", "--queries", str(queries)]
    assert main(command) == 0
    assert verify_bundle(tmp_path / "large") == []
    real, large = Bundle.open(recipe.parent / "bundle"), Bundle.open(tmp_path / "large")
    assert (large.manifest.documents, large.manifest.dimension) == (700, 8)
    assert large.manifest.sparse.top_k == real.manifest.sparse.top_k == 25
    np.testing.assert_array_equal(large.table("web").rows(np.arange(50)), real.table("web").rows(np.arange(50)))
    with real.sparse() as few, large.sparse() as many:
        (terms,) = real.vocabulary(real.tokenizer()).terms_of(["plays music from the terminal"])
        found = [index.search(terms, np.ones(len(terms), np.float32), 100)[0].size for index in (few, many)]
        assert found[1] > found[0] > 0
        assert json.loads(many.documents(np.array([5]))[0])["_id"]


@pytest.mark.parametrize("vocabulary", ["words", "both"])
def test_a_larger_bundle_of_words(vocabulary: str, recipe: Path, tmp_path: Path) -> None:
    """Expanded ones: a document drawn near others has their terms, and their impacts."""
    content = yaml.safe_load(recipe.read_text())
    content["index"] = {"dimension": 8, "vocabulary": vocabulary, "language": "english", "k1": 1.2}
    words = save(tmp_path / "recipe.yaml", content | {"output": str(tmp_path / "bundle")})
    run("index", words)  # of the same encoding
    assert main([str(words), str(tmp_path / "large"), "--documents", "300"]) == 0
    assert verify_bundle(tmp_path / "large") == []
    real, large = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "large")
    assert large.manifest.sparse == real.manifest.sparse
    assert (large.manifest.fusion, large.manifest.sparse.k1) == (real.manifest.fusion, 1.2)
    assert large.manifest.sparse.expansion is not None
    with real.sparse() as few, large.sparse() as many:
        _, known, *_ = few.rows(0, few.count)
        indptr, names, _, impacts = many.rows(0, many.count)
        assert set(names) <= set(known)
        assert np.diff(indptr).min() > 0
        assert impacts.min() > 0


def test_vectors_may_be_cut_further(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(recipe), str(tmp_path / "cut"), "--documents", "50", "--dimension"]
    assert main([*command, "4"]) == 0
    assert Bundle.open(tmp_path / "cut").manifest.dimension == 4
    assert main([*command, "9"]) == 2
    assert "--dimension is 9, the bundle has 8. Give 1 to 8." in capsys.readouterr().err


def test_a_bundle_that_was_not_built_is_named(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = yaml.safe_load(recipe.read_text())
    other = save(tmp_path / "recipe.yaml", content | {"work": str(tmp_path / "nowhere")})
    assert main([str(other), str(tmp_path / "large"), "--documents", "10"]) == 2
    assert "nowhere" in capsys.readouterr().err
