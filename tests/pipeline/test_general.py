import shutil
from pathlib import Path

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.general import GeneralTable, find_general_table, shipped_tables
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.sentence_models import BiEncoder, load_biencoder
from lightretriever.artifacts.tokens.table import TokenTable
from tests.pipeline.test_distil import COUNT, QUERIES, write_recipe
from tests.support.biencoder import save_biencoder
from tests.support.commands import only, run
from tests.support.judged import write_queries
from tests.support.models import write_corpus
from tests.support.recipes import change, save
from tests.support.wordings import raises

FIT = {"epochs": 3, "batch_size": 32, "learning_rate": 0.02, "held_out": 40}


@pytest.fixture(scope="module")
def table(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A general table of the tiny encoder, made by the command."""
    here = tmp_path_factory.mktemp("general")
    write_queries(here / "texts", QUERIES)
    write_corpus(here / "texts" / "corpus.jsonl", COUNT)
    content = {
        "kind": "general-table",
        "model": {"path": str(encoder_folder), "device": "cpu"},
        "licence": "MIT",
        "texts": [{"path": "texts", "name": "tiny", "licence": "CC0-1.0", "documents": 100, "sentences": 200}],
        "fit": FIT,
        "work": str(here / "work"),
        "output": str(here / "table"),
    }
    output = run("build", save(here / "recipe.yaml", content), "--corpus", here)
    assert "fitted to 100 documents, 2" in output
    return here / "table"


@pytest.fixture
def recipe(tmp_path: Path, encoder_folder: Path) -> Path:
    """A model and a corpus alone: no section `distil`."""
    return change(write_recipe(tmp_path, encoder_folder), without="distil")


def test_a_table_agrees_with_its_encoder_more_than_single_tokens_do(table: Path, encoder: BiEncoder) -> None:
    made = GeneralTable.open(table)
    before, after = made.info.agreement
    assert after.overlap > before.overlap
    assert made.info.texts[0]["licence"] == "CC0-1.0"
    assert made.rows().shape == (encoder.tokenizer.vocab_size, encoder.hidden_size)
    assert TokenTable.open(table / "table.npy").dtype == "int8"
    assert find_general_table(encoder, QUERIES, [table]) == made


def test_a_table_of_another_encoder_is_not_taken(table: Path, encoder: BiEncoder, tmp_path: Path) -> None:
    """Same tokenizer and size, other weights: only the vectors tell."""
    other = load_biencoder(str(save_biencoder(tmp_path / "other", seed=1)), device="cpu")
    assert other.tokenizer.sha256 == encoder.tokenizer.sha256
    assert find_general_table(other, QUERIES, [table]) is None


def test_with_a_named_table_only_documents_are_encoded(table: Path, recipe: Path, tmp_path: Path) -> None:
    change(recipe, {"tables": {"search": str(table)}})
    run("build", recipe)
    built = TokenTable.open(tmp_path / "bundle" / "tables" / "search.npy")
    rows = built.rows(np.arange(built.shape[0]))
    np.testing.assert_allclose(rows, GeneralTable.open(table).rows(), rtol=1e-6, atol=1e-7)
    assert not (tmp_path / "work" / "tables" / "search" / "teacher").exists()
    assert not (tmp_path / "work" / "tables" / "search" / "states").exists()
    assert Bundle.open(tmp_path / "bundle").manifest.documents == COUNT


def test_distil_fits_a_table_and_compares_it_with_the_general_one(table: Path, recipe: Path, tmp_path: Path) -> None:
    change(recipe, {"tables": {"search": str(table)}})
    run(*only("encode"), recipe)
    change(recipe, {"distil": {**FIT, "queries": [str(tmp_path / "queries.jsonl")]}})
    output = run("build", "--until", "table", recipe)
    assert "; general table 0." in output
    rows = np.load(tmp_path / "work" / "tables" / "search" / "table.npy")
    assert ((rows == GeneralTable.open(table).rows()).all()) == ("which is better" in output)
    change(recipe, without="distil")
    run("build", "--until", "table", recipe)
    rows = np.load(tmp_path / "work" / "tables" / "search" / "table.npy")
    np.testing.assert_array_equal(rows, GeneralTable.open(table).rows())
    assert not (tmp_path / "work" / "tables" / "search" / "training.json").exists()


def test_without_a_general_table_one_is_fitted(recipe: Path, tmp_path: Path) -> None:
    assert read_recipe(recipe, Recipe).model.trained
    run("build", recipe)
    assert (tmp_path / "work" / "tables" / "search" / "training.json").is_file()


def test_a_named_table_of_another_encoder_is_refused(table: Path, recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-table"
    shutil.copytree(table, other)
    np.save(other / "table.npy", -np.load(other / "table.npy"))
    change(recipe, {"tables": {"search": str(other)}})
    with raises(RecipeError, naming="tables.search"):
        run("build", recipe)
    change(recipe, {"tables": {"search": str(tmp_path / "nowhere")}})
    with raises(RecipeError, naming="table.json"):
        run("build", recipe)


def test_the_shipped_tables_are_whole() -> None:
    names = [GeneralTable.open(folder).info.encoder for folder in shipped_tables()]
    assert names == ["all-MiniLM-L6-v2"]
    rows = GeneralTable.open(shipped_tables()[0]).rows()
    assert rows.shape == (30522, 384)
    assert np.isfinite(rows).all()
    assert sum(file.stat().st_size for file in shipped_tables()[0].iterdir()) < 12_000_000
