"""Regression on a teacher: its losses, its texts, and a whole run, in one go, in slices and killed."""

import copy
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import PreTrainedModel

from lightretriever.artifacts.errors import ModelError, RecipeError, ResumeError
from lightretriever.artifacts.files.workdir import check_plan, read_json
from lightretriever.artifacts.pipeline.biencoder import load_biencoder
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import TableTraining
from lightretriever.artifacts.training import loop
from lightretriever.artifacts.training.data import prepare
from lightretriever.artifacts.training.losses import row_loss, similarity_loss
from lightretriever.artifacts.training.recipe import TokenRegression, TrainRecipe
from lightretriever.artifacts.training.texts import TaughtTexts, cut
from lightretriever.artifacts.training.token_rows import fit_rows
from tests.support.biencoder import save_biencoder
from tests.support.models import load
from tests.support.recipes import save, training
from tests.support.tiny import tiny_documents
from tests.support.toy import save_toy_model, write_toy_set
from tests.support.waiting import wait_until
from tests.support.wordings import raises
from tests.training.test_train import log_of

train = loop.train


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a teacher and a set."""
    folder = tmp_path_factory.mktemp("regression")
    save_toy_model(folder / "model")
    save_biencoder(folder / "teacher", hidden_size=32)
    write_toy_set(folder / "texts", "train", 400, seed=1)
    return folder


def recipe_of(toy: Path, work: Path, steps: int = 6, **changes: Any) -> dict[str, Any]:
    stage = {
        "kind": "regression",
        "steps": steps,
        "batch_size": 16,
        "learning_rate": 0.003,
        "every": 3,
        "tokens": {"count": 8, "queries": 100, "blocks": 1, "fit": {"epochs": 2, "batch_size": 64}},
    }
    teacher = {"path": str(toy / "teacher"), "length": 12, "long_length": 16, "held_out": 40}
    return training(work, toy / "model", toy / "texts", **{"teacher": teacher, "stages": [stage], **changes})


def losses(work: Path) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in log_of(work) if "loss" in entry]


def assert_same_adapter(one: Path, other: Path) -> None:
    for name in ("adapter_model.safetensors", "projection.safetensors"):
        first, second = load_file(one / "adapter" / name), load_file(other / "adapter" / name)
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.fixture(scope="module")
def trained(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("trained")
    assert train(TrainRecipe.model_validate(recipe_of(toy, work)))
    return work


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["end", "mean"])
def test_the_model_comes_to_agree_with_the_teacher(toy: Path, tmp_path: Path, pooling: str) -> None:
    assert train(TrainRecipe.model_validate(recipe_of(toy, tmp_path, steps=40, pooling=pooling)))
    held_out = [entry["held_out"] for entry in log_of(tmp_path) if "held_out" in entry]
    assert held_out[-1]["cosine"] > 0.9  # it begins with the best linear map
    assert 0 < held_out[-1]["overlap"] <= 1
    steps = [entry for entry in log_of(tmp_path) if "loss" in entry]
    first, last = ([entry["rows"] for entry in part] for part in (steps[:8], steps[-8:]))
    assert sum(last) < sum(first)
    assert all(entry["cosine_gradient"] > 0 and entry["rows_gradient"] > 0 for entry in steps)


def test_documents_and_tokens_of_the_adapter_lie_in_the_teachers_space(
    toy: Path, trained: Path, tmp_path: Path
) -> None:
    adapter = str(trained / "adapter")
    backbone = load(toy / "model", adapter=adapter)
    plain = load(toy / "model")
    assert (backbone.vector_size, plain.vector_size) == (32, 64)
    assert backbone.fingerprint != plain.fingerprint
    encoder = LanguageModel.of(backbone)
    assert encoder.encode_documents(["say1 and say2"]).dense.shape == (1, encoder.hidden_size) == (1, 32)
    assert encoder.encode_queries(["say1"], "find").dense.shape == (1, 32)
    rows = token_rows(encoder, "find", tmp_path / "table")
    assert rows.shape == (backbone.vocab_size, 32)
    (table,) = (trained / "work" / "rows").glob("*/table.npy")
    fitted = torch.from_numpy(np.load(table))
    assert fitted.shape == rows.shape


@pytest.mark.slow
def test_slices_of_time_end_with_the_very_result_of_one_run(toy: Path, trained: Path, tmp_path: Path) -> None:
    recipe = TrainRecipe.model_validate(recipe_of(toy, tmp_path))
    while not train(recipe, minutes=0):  # every slice does one step
        pass
    assert losses(tmp_path) == losses(trained)
    assert log_of(tmp_path)[0]["held_out"] == log_of(trained)[0]["held_out"]
    assert_same_adapter(tmp_path, trained)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_very_result_of_one_run(toy: Path, trained: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "recipe.yaml", recipe_of(toy, tmp_path))
    command = [sys.executable, "-m", "lightretriever.service.cli", "train", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "work" / "checkpoint.pt"
    wait_until(lambda: checkpoint.is_file() or process.poll() is not None)
    process.kill()
    process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert [step for step, _ in losses(tmp_path)] == list(range(6))
    assert [loss for _, loss in losses(tmp_path)] == pytest.approx([loss for _, loss in losses(trained)], rel=1e-4)


@pytest.mark.slow
def test_steps_may_change_while_a_run_goes_on(toy: Path, tmp_path: Path) -> None:
    content = recipe_of(toy, tmp_path)
    assert not train(TrainRecipe.model_validate(content), minutes=0)
    content["stages"][0]["steps"] = 2
    assert train(TrainRecipe.model_validate(content))
    assert [step for step, _ in losses(tmp_path)] == [0, 1]


def copied_sets(toy: Path, folder: Path) -> dict[str, Any]:
    shutil.copytree(toy / "texts", folder / "texts")
    return {"sets": [{"path": str(folder / "texts"), "instruction": "find"}]}


def test_a_changed_corpus_is_refused(toy: Path, tmp_path: Path) -> None:
    recipe = TrainRecipe.model_validate(recipe_of(toy, tmp_path, data=copied_sets(toy, tmp_path)))
    assert not train(recipe, minutes=0)
    with (tmp_path / "texts" / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "title": "", "text": "say1 and say2"}\n')
    with raises(ResumeError, naming="(corpus: "):
        train(recipe, minutes=0)
    assert len(losses(tmp_path)) == 1


@pytest.mark.slow
def test_rows_are_fitted_again_for_a_stage_with_other_settings_and_refused_for_other_queries(
    toy: Path, tmp_path: Path
) -> None:
    content = recipe_of(toy, tmp_path, steps=1, data=copied_sets(toy, tmp_path))
    assert train(TrainRecipe.model_validate(content))
    (first,) = (tmp_path / "work" / "rows").glob("*/table.npy")
    again = copy.deepcopy(content["stages"][0])
    again["tokens"]["fit"]["epochs"] = 1
    content["stages"].append(again)
    assert train(TrainRecipe.model_validate(content))
    (second,) = set((tmp_path / "work" / "rows").glob("*/table.npy")) - {first}
    assert not np.array_equal(np.load(first), np.load(second))
    content["stages"].append(again)
    queries = tmp_path / "texts" / "queries.jsonl"
    queries.write_text(queries.read_text().replace('"text": "', '"text": "with '))
    with raises(ResumeError, naming="plan.json"):
        train(TrainRecipe.model_validate(content))


@pytest.mark.slow
def test_a_regression_stage_can_be_added_and_taken_back(toy: Path, tmp_path: Path) -> None:
    """It brings a linear map that the earlier checkpoint lacks, and no development score: its own weights are kept."""
    write_toy_set(tmp_path / "dev", "dev", 40, seed=2)
    dev = {"path": str(tmp_path / "dev"), "instruction": "find", "every": 2, "queries": 20, "documents": 40}
    content = recipe_of(toy, tmp_path, steps=1, dev=dev)
    contrastive = {"kind": "contrastive", "steps": 4, "batch_size": 8, "negatives": 0, "learning_rate": 0.003}
    longer = TrainRecipe.model_validate(content | {"stages": [contrastive, *content["stages"]]})
    recipe = TrainRecipe.model_validate(content | {"stages": [contrastive]})
    assert train(recipe)
    work = shutil.copytree(tmp_path / "work", tmp_path / "other")
    check_plan(work / "plan.json", read_json(work / "plan.json") | {"stages": stages_of(longer)}, growing="stages")
    assert train(recipe.model_copy(update={"work": work}))  # it had not begun
    assert train(longer)
    trained = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    last = torch.load(tmp_path / "work" / "checkpoint.pt", weights_only=True)["weights"]
    best = load_file(tmp_path / "work" / "best.safetensors")
    for name, tensor in last.items():
        if name != "projection.weight":
            assert torch.equal(trained[name.removeprefix("peft.").replace(".default", "")], tensor.bfloat16()), name
    assert any(not torch.equal(tensor, last[name]) for name, tensor in best.items())
    assert (tmp_path / "adapter" / "projection.safetensors").is_file()
    assert "those of the last step" in (tmp_path / "adapter" / "README.md").read_text()
    plan = (tmp_path / "work" / "plan.json").read_bytes()
    with raises(ResumeError) as refused:
        train(recipe)
    assert refused.value.remedy == "Name them all; only a stage that has not begun can be taken back."
    assert (tmp_path / "work" / "plan.json").read_bytes() == plan


def test_a_contrastive_stage_before_the_first_regression_has_to_end_first(toy: Path, tmp_path: Path) -> None:
    """Before it the linear map is all zeros, so that the dense side would not be trained."""
    content = recipe_of(toy, tmp_path, steps=1)
    contrastive = {"kind": "contrastive", "steps": 2, "batch_size": 8, "negatives": 0}
    alone = TrainRecipe.model_validate(content | {"stages": [contrastive]})
    both = TrainRecipe.model_validate(content | {"stages": [contrastive, *content["stages"]]})
    with raises(RecipeError):
        train(both)
    assert not train(alone, minutes=0)
    with raises(RecipeError) as error:
        train(both)
    assert error.value.remedy == "Put a regression first; or train without stages from 1 on, and then add them."
    assert train(alone)
    twice = TrainRecipe.model_validate(content | {"stages": [contrastive, contrastive, *content["stages"]]})
    with raises(RecipeError):
        train(twice)
    assert not train(both, minutes=0)


def test_a_contrastive_stage_after_a_regression_trains_the_dense_side(toy: Path, tmp_path: Path) -> None:
    content = recipe_of(toy, tmp_path, steps=1)
    contrastive = {"kind": "contrastive", "steps": 1, "batch_size": 8, "negatives": 0}
    assert train(TrainRecipe.model_validate(content | {"stages": [*content["stages"], contrastive]}))
    assert log_of(tmp_path)[-1]["dense_gradient"] > 0


def stages_of(recipe: TrainRecipe) -> Any:
    return recipe.model_dump(mode="json", exclude={"stages": {"__all__": {"chunk_tokens", "steps", "every"}}})["stages"]


def taught(toy: Path, content: dict[str, Any]) -> TaughtTexts:
    recipe, backbone = TrainRecipe.model_validate(content), load(toy / "model")
    teacher = load_biencoder(str(toy / "teacher"), device="cpu")
    return TaughtTexts(backbone, teacher, prepare(recipe), recipe, Accelerator(cpu=True))


def test_a_block_is_a_function_of_seed_and_number(toy: Path, tmp_path: Path) -> None:
    first, second = (taught(toy, recipe_of(toy, tmp_path)) for _ in range(2))
    straddling = first.batch(2040, 16)
    assert straddling.texts == second.batch(2040, 16).texts
    np.testing.assert_array_equal(straddling.targets, second.batch(2040, 16).targets)
    assert straddling.texts == [*first.block(0)[0][-8:], *first.block(1)[0][:8]]
    held_out, vectors = first.held_out()
    assert len(held_out) == len(vectors) == 40
    drawn = first.block(0)[0]
    assert not set(held_out) & set(cut(load(toy / "model"), drawn, [12] * len(drawn)))
    teacher = load_biencoder(str(toy / "teacher"), device="cpu")
    np.testing.assert_allclose(vectors, teacher.encode_documents(held_out).dense, atol=1e-3)


def test_a_text_that_one_set_holds_out_is_trained_on_in_none(toy: Path, tmp_path: Path) -> None:
    shared = [{"path": str(toy / "texts"), "name": name, "instruction": name} for name in ("one", "two")]
    texts = taught(toy, recipe_of(toy, tmp_path, data={"sets": shared}))
    held_out, _ = texts.held_out()
    assert len(set(held_out)) == len(held_out) > 40  # those of both sets, each once
    drawn = texts.block(0)[0]
    assert not set(held_out) & set(cut(load(toy / "model"), drawn, [12] * len(drawn)))


def test_a_set_whose_texts_are_all_held_out_of_another_is_refused(toy: Path, tmp_path: Path) -> None:
    held_out, _ = taught(toy, recipe_of(toy, tmp_path / "first")).held_out()
    corpus = write_toy_set(tmp_path / "few", "train", 2, seed=1) / "corpus.jsonl"
    corpus.write_text(json.dumps({"_id": "d0", "title": "", "text": held_out[0]}) + "\n")
    sets = [{"path": str(path), "instruction": "find"} for path in (toy / "texts", tmp_path / "few")]
    with raises(RecipeError, naming="data.sets"):
        taught(toy, recipe_of(toy, tmp_path / "second", data={"sets": sets}))


def test_so_many_blocks_are_gone_through_again(toy: Path, tmp_path: Path) -> None:
    content = recipe_of(toy, tmp_path)
    content["teacher"]["blocks"] = 1
    texts = taught(toy, content)
    around = texts.batch(2040, 16)
    assert around.texts == [*texts.block(0)[0][-8:], *texts.block(0)[0][:8]]
    np.testing.assert_array_equal(around.targets[8:], texts.batch(0, 8).targets)


def test_a_text_is_cut_to_what_the_model_reads(toy: Path, tmp_path: Path) -> None:
    backbone = load(toy / "model")
    texts = ["say1 and say2 with some", "say1 and", "say1 and say2 with some"]
    assert cut(backbone, texts, [5, 5, 4]) == ["say1 and say2", "say1 and", "say1 and"]  # bos and eos take two


def test_rows_are_fitted_to_the_tokens_that_the_service_looks_up(toy: Path, backbone: Backbone, tmp_path: Path) -> None:
    """Those of queries; texts are tokenised as documents are."""
    teacher = load_biencoder(str(toy / "teacher"), device="cpu")
    texts, queries = [document.full_text for document in tiny_documents(20)], ["music player", "zebra"]
    block = (texts, teacher.encode_documents(texts).dense.astype(np.float16))
    settings = TokenRegression(fit=TableTraining(epochs=1))
    fitted = fit_rows(backbone, teacher, [block], queries, settings, tmp_path)
    bags = [ids.tolist() for ids in backbone.tokenizer.encode_batch(texts)]
    bags += [backbone.tokenizer.query_ids(query) for query in queries]
    shares = np.sqrt(np.bincount([token for bag in bags for token in {*bag}], minlength=backbone.embedded))
    np.testing.assert_allclose(fitted.shares, shares / shares.sum())
    (table,) = tmp_path.glob("*/table.npy")
    plan = table.with_name("plan.json")
    plan.write_text(json.dumps({key: value for key, value in read_json(plan).items() if key != "query_tokens"}))
    with raises(ResumeError, naming="query_tokens"):
        fit_rows(backbone, teacher, [block], queries, settings, tmp_path)


def test_similarity_loss_by_its_formula() -> None:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(4, 5, generator=generator)
    targets = torch.nn.functional.normalize(torch.randn(4, 5, generator=generator), dim=1)
    expected = 0.0
    for i in range(4):
        others = [j for j in range(4) if j != i]
        theirs = [float(targets[i] @ targets[j]) / 0.1 for j in others]
        ours = [float(targets[i] @ vectors[j] / vectors[j].norm()) / 0.1 for j in others]
        p, q = ([math.exp(one) / sum(map(math.exp, of)) for one in of] for of in (theirs, ours))
        expected += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 4
    assert float(similarity_loss(vectors, targets, 0.1)) == pytest.approx(expected, rel=1e-5)
    assert float(similarity_loss(3 * targets, targets, 0.1)) == pytest.approx(0, abs=1e-6)


def test_row_loss_is_of_direction_and_of_length() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    direction, length = row_loss(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), rows, scale=5.0)
    assert float(direction) == pytest.approx(0.5)
    assert float(length) == pytest.approx((4 / 5 + 0) / 2)


def test_a_regression_stage_needs_a_teacher(toy: Path, tmp_path: Path) -> None:
    with raises(ValueError, naming="value_error"):
        TrainRecipe.model_validate(recipe_of(toy, tmp_path, teacher=None))


def test_the_first_layers_alone_are_kept(toy: Path, tmp_path: Path) -> None:
    backbone = load(toy / "model", layers=1)
    whole = load(toy / "model")
    assert cast(PreTrainedModel, backbone.decoder).config.num_hidden_layers == 1
    assert backbone.fingerprint != whole.fingerprint
    with raises(ModelError):
        load(toy / "model", layers=3)


@pytest.mark.slow
def test_an_adapter_remembers_how_many_layers_it_was_trained_on(toy: Path, tmp_path: Path) -> None:
    assert train(TrainRecipe.model_validate(recipe_of(toy, tmp_path, steps=1, layers=1)))
    backbone = load(toy / "model", adapter=str(tmp_path / "adapter"))
    assert cast(PreTrainedModel, backbone.decoder).config.num_hidden_layers == 1


def test_sets_of_too_few_texts_are_refused(toy: Path, tmp_path: Path) -> None:
    write_toy_set(tmp_path / "few", "train", 12, seed=1)
    recipe = recipe_of(toy, tmp_path, data={"sets": [{"path": str(tmp_path / "few"), "instruction": "find"}]})
    with raises(RecipeError, naming="data.sets"):
        train(TrainRecipe.model_validate(recipe))
    (tmp_path / "few" / "corpus.jsonl").write_text("\n")
    with raises(RecipeError, naming="data.sets"):
        train(TrainRecipe.model_validate({**recipe, "work": str(tmp_path / "other")}))
