"""Token tables of a language model: one row per token, in parts, against the token-by-token forward pass."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lightretriever.artifacts.errors import ModelError, RecipeError, ResumeError
from lightretriever.artifacts.pipeline import encoder as encoder_module
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone, load_embedding_bag
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.stages import load_recipe_encoders, run_tables
from tests.support.models import token_states_naive
from tests.support.recipes import write_recipe
from tests.support.wordings import raises

INSTRUCTION = "Given a question, retrieve passages that answer it"
PART = 100


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "PART", PART)


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> Recipe:
    tasks = {"one": INSTRUCTION, "other": "Find another"}
    return read_recipe(write_recipe(tmp_path, model_folder, documents=5, tasks=tasks), Recipe)


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
