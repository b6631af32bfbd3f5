"""Token tables: of a language model against the token-by-token forward pass, and general ones of an encoder."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError, RecipeError, ResumeError
from lightretriever.artifacts.pipeline import encoder as encoder_module
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.general import GeneralTable, find_general_table, shipped_tables
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone, load_embedding_bag
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.sentence_models import BiEncoder, load_biencoder
from lightretriever.artifacts.pipeline.stages import load_recipe_encoders, run_tables
from lightretriever.artifacts.tokens.table import TokenTable
from tests.pipeline.test_distil import COUNT, QUERIES, write_recipe
from tests.support import recipes
from tests.support.biencoder import save_biencoder
from tests.support.commands import only, run
from tests.support.judged import write_queries
from tests.support.models import token_states_naive, write_corpus
from tests.support.recipes import change, save
from tests.support.wordings import raises

INSTRUCTION = "Given a question, retrieve passages that answer it"
PART = 100


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "PART", PART)


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> Recipe:
    tasks = {"one": INSTRUCTION, "other": "Find another"}
    return read_recipe(recipes.write_recipe(tmp_path, model_folder, documents=5, tasks=tasks), Recipe)


def test_every_row_equals_the_token_by_token_forward_pass(any_backbone: Backbone, tmp_path: Path) -> None:
    rows = token_rows(LanguageModel.of(any_backbone), INSTRUCTION, tmp_path)
    assert rows.shape == (any_backbone.vocab_size, any_backbone.hidden_size)
    assert rows.dtype == np.float32
    with torch.inference_mode():
        every = torch.arange(any_backbone.vocab_size)
        expected = token_states_naive(any_backbone, instruction_prefix(any_backbone, INSTRUCTION), every)
    np.testing.assert_allclose(rows, expected.numpy(), atol=2e-5, rtol=1e-4)


def test_rows_of_a_stopped_run_are_kept(backbone: Backbone, tmp_path: Path) -> None:
    encoder = LanguageModel.of(backbone)
    whole = token_rows(encoder, INSTRUCTION, tmp_path)
    np.save(tmp_path / f"part-{PART:07d}.npy", np.ones((PART, backbone.hidden_size), np.float32))
    (tmp_path / f"part-{2 * PART:07d}.npy").unlink()
    whole[PART : 2 * PART] = 1
    np.testing.assert_array_equal(token_rows(encoder, INSTRUCTION, tmp_path), whole)


def test_a_stage_leaves_whole_tables_and_keeps_them(recipe: Recipe) -> None:
    encoders = load_recipe_encoders(recipe)
    tables = {task: Path(table["path"]) for task, table in run_tables(recipe, encoders).facts["tables"].items()}
    written = {file: file.stat().st_mtime_ns for file in tables.values()}
    for file in tables.values():
        assert {path.name for path in file.parent.iterdir()} == {"plan.json", "table.npy"}
    tables["other"].unlink()
    (tables["one"].parent / "part-0000000.npy").touch()  # a run that was killed after it had written the table
    assert run_tables(recipe, encoders).facts["tables"].keys() == tables.keys()
    assert tables["one"].stat().st_mtime_ns == written[tables["one"]]
    assert not list(tables["one"].parent.glob("part-*"))


def test_a_released_table_is_taken_as_it_is(recipe: Recipe, tmp_path: Path) -> None:
    encoders, file = load_recipe_encoders(recipe), tmp_path / "web.emb_bag.pt"
    weight = torch.randn(encoders.dense.tokenizer.vocab_size, encoders.dense.hidden_size).bfloat16()
    torch.save(weight, file)
    made = run_tables(recipe.model_copy(update={"tables": {"other": file}}), encoders).facts["tables"]
    np.testing.assert_array_equal(np.load(made["other"]["path"]), weight.float().numpy())
    assert not np.array_equal(np.load(made["one"]["path"]), np.load(made["other"]["path"]))
    torch.save(2 * weight, file)
    with raises(ResumeError, naming="plan.json"):
        run_tables(recipe.model_copy(update={"tables": {"other": file}}), encoders)


def test_a_released_table_that_is_missing_or_does_not_fit_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with raises(RecipeError, naming="tables.one"):
        run_tables(recipe.model_copy(update={"tables": {"one": tmp_path / "none.pt"}}), load_recipe_encoders(recipe))
    file = tmp_path / "web.emb_bag.pt"
    torch.save(torch.zeros(5, 6), file)
    with raises(ModelError):
        load_embedding_bag(file, 7, 6)
    torch.save({"a": torch.zeros(5, 6)}, file)
    with raises(ModelError):
        load_embedding_bag(file, 5, 6)
    for damaged in (b"PK broken", b"junk", b"", b"\x80\x02."):
        file.write_bytes(damaged)
        with raises(ModelError):
            load_embedding_bag(file, 5, 6)


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
def alone(tmp_path: Path, encoder_folder: Path) -> Path:
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


def test_with_a_named_table_only_documents_are_encoded(table: Path, alone: Path, tmp_path: Path) -> None:
    change(alone, {"tables": {"search": str(table)}})
    run("build", alone)
    built = TokenTable.open(tmp_path / "bundle" / "tables" / "search.npy")
    rows = built.rows(np.arange(built.shape[0]))
    np.testing.assert_allclose(rows, GeneralTable.open(table).rows(), rtol=1e-6, atol=1e-7)
    assert not (tmp_path / "work" / "tables" / "search" / "teacher").exists()
    assert not (tmp_path / "work" / "tables" / "search" / "states").exists()
    assert Bundle.open(tmp_path / "bundle").manifest.documents == COUNT


def test_distil_fits_a_table_and_compares_it_with_the_general_one(table: Path, alone: Path, tmp_path: Path) -> None:
    change(alone, {"tables": {"search": str(table)}})
    run(*only("encode"), alone)
    change(alone, {"distil": {**FIT, "queries": [str(tmp_path / "queries.jsonl")]}})
    output = run("build", "--until", "table", alone)
    assert "; general table 0." in output
    rows = np.load(tmp_path / "work" / "tables" / "search" / "table.npy")
    assert ((rows == GeneralTable.open(table).rows()).all()) == ("which is better" in output)
    change(alone, without="distil")
    run("build", "--until", "table", alone)
    rows = np.load(tmp_path / "work" / "tables" / "search" / "table.npy")
    np.testing.assert_array_equal(rows, GeneralTable.open(table).rows())
    assert not (tmp_path / "work" / "tables" / "search" / "training.json").exists()


def test_without_a_general_table_one_is_fitted(alone: Path, tmp_path: Path) -> None:
    assert read_recipe(alone, Recipe).model.trained
    run("build", alone)
    assert (tmp_path / "work" / "tables" / "search" / "training.json").is_file()


def test_a_named_table_of_another_encoder_is_refused(table: Path, alone: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-table"
    shutil.copytree(table, other)
    np.save(other / "table.npy", -np.load(other / "table.npy"))
    change(alone, {"tables": {"search": str(other)}})
    with raises(RecipeError, naming="tables.search"):
        run("build", alone)
    change(alone, {"tables": {"search": str(tmp_path / "nowhere")}})
    with raises(RecipeError, naming="table.json"):
        run("build", alone)


def test_the_shipped_tables_are_whole() -> None:
    names = [GeneralTable.open(folder).info.encoder for folder in shipped_tables()]
    assert names == ["all-MiniLM-L6-v2"]
    rows = GeneralTable.open(shipped_tables()[0]).rows()
    assert rows.shape == (30522, 384)
    assert np.isfinite(rows).all()
    assert sum(file.stat().st_size for file in shipped_tables()[0].iterdir()) < 12_000_000
