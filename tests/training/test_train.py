"""`lightretriever train` from end to end: a tiny model on a toy set, in one go, in slices, and in two processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightretriever.artifacts.errors import BundleError, CorpusError, ResumeError
from lightretriever.artifacts.training import loop
from lightretriever.artifacts.training.adapter import Adapter
from lightretriever.artifacts.training.recipe import LoraRecipe, TrainRecipe
from tests.support.commands import ROOT, run
from tests.support.judged import evaluate_bundle, write_judged
from tests.support.models import load
from tests.support.recipes import save, training, write_recipe
from tests.support.wordings import raises

INSTRUCTION = "find"
WITHOUT_DROPOUT = {"r": 8, "alpha": 16, "dropout": 0.0}
train = loop.train


def recipe_of(toy: Path, work: Path, **changes: Any) -> dict[str, Any]:
    common = {"kind": "contrastive", "batch_size": 8, "negatives": 0, "learning_rate": 0.01}
    first = {**common, "steps": 3, "full_kl": 0.0, "matryoshka": [16]}
    contrastive = {**common, "steps": 6, "full_kl": 0.5, "matryoshka": [16]}
    parts = {"lora": {**WITHOUT_DROPOUT, "dropout": 0.1}, "stages": [first, contrastive], **changes}
    return training(work, toy / "model", toy / "pairs", **parts)


def log_of(work: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (work / "work" / "log.jsonl").read_text().splitlines()]


def losses(work: Path) -> list[tuple[int, int, float]]:
    return [(entry["stage"], entry["step"], entry["loss"]) for entry in log_of(work) if "loss" in entry]


def weights(work: Path) -> dict[str, torch.Tensor]:
    return load_file(work / "adapter" / "adapter_model.safetensors")


def assert_same_weights(work: Path, other: Path) -> None:
    torch.testing.assert_close(weights(work), weights(other), rtol=0, atol=0)


@pytest.fixture(scope="module")
def uninterrupted(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("whole")
    assert train(TrainRecipe.model_validate(recipe_of(toy, work)))
    return work


def test_slices_of_time_end_with_the_very_losses_of_one_run(toy: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Every slice does one step. One is as if it had been killed after its step, before its checkpoint."""
    recipe, checkpoint = TrainRecipe.model_validate(recipe_of(toy, tmp_path)), tmp_path / "work" / "checkpoint.pt"
    slices, saved = 0, b""
    while not train(recipe, minutes=0):
        slices += 1
        if slices == 6:
            saved = checkpoint.read_bytes()
        if slices == 7:
            assert len(losses(tmp_path)) == 7
            checkpoint.write_bytes(saved)
    assert slices == 10
    assert losses(tmp_path) == losses(uninterrupted)
    steps = [*((0, step) for step in range(3)), *((1, step) for step in range(6))]
    assert [(stage, step) for stage, step, _ in losses(tmp_path)] == steps
    assert_same_weights(tmp_path, uninterrupted)


def test_a_stage_added_to_a_finished_run_trains_as_if_begun_with(
    toy: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(toy, tmp_path)
    first, second = recipe["stages"]
    assert train(TrainRecipe.model_validate(recipe | {"stages": [first]}))
    assert len(losses(tmp_path)) == 3
    with raises(ResumeError, naming="stages.0.steps") as refused:
        train(TrainRecipe.model_validate(recipe | {"stages": [{**first, "steps": 5}]}))
    assert refused.value.remedy == "Set it to 3; to train on, add a stage."
    assert train(TrainRecipe.model_validate(recipe))
    assert losses(tmp_path) == losses(uninterrupted)
    assert_same_weights(tmp_path, uninterrupted)
    with raises(ResumeError):
        train(TrainRecipe.model_validate(recipe | {"stages": [second]}))


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
ACCELERATE = ("accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1")


def launched(
    work: Path, recipe: dict[str, Any], *launcher: str, module: tuple[str, ...] = ("lightretriever.service.cli",)
) -> subprocess.CompletedProcess[str]:
    """A run of the command or of a module around it, by itself or started by the module of a launcher."""
    work.mkdir(exist_ok=True)
    words = [*(("-m", *launcher) if launcher else ()), "-m", *module, "train", str(save(work / "recipe.yaml", recipe))]
    command = [sys.executable, *words, "--json"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def command_losses(work: Path, recipe: dict[str, Any], *launcher: str) -> list[float]:
    result = launched(work, recipe, *launcher)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["finished"]  # one object, of the first process
    assert "%|" not in result.stderr  # no bar is drawn into a log
    return [loss for *_, loss in losses(work)]


@pytest.mark.slow
@pytest.mark.parametrize("chunk_tokens", [None, 40])
def test_two_processes_train_as_one(toy: Path, tmp_path: Path, chunk_tokens: int | None) -> None:
    """Batches that are kept, and batches that are cut into chunks, of which one process has more, by a model with a
    tied head."""
    dev = {"path": str(toy / "dev"), "instruction": INSTRUCTION, "every": 2, "queries": 20, "documents": 40}
    content = recipe_of(toy, tmp_path, lora=WITHOUT_DROPOUT, dev=dev)
    if chunk_tokens is not None:
        content["model"]["path"] = str(toy / "tied")
    # With larger steps, Adam makes much of rounding.
    cut = {"accumulate": 2, "batch_size": 7, "learning_rate": 0.002, "chunk_tokens": chunk_tokens}
    stages = [{**stage, **cut} for stage in content["stages"]]
    found = {}
    for name in ("one", "two"):
        work = tmp_path / name
        places = {"work": str(work / "work"), "output": str(work / "adapter")}
        found[name] = command_losses(work, content | places | {"stages": stages}, *(TORCHRUN if name == "two" else ()))
    assert found["two"] == pytest.approx(found["one"], rel=1e-4)
    for key, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[key], tensor, atol=2e-3, rtol=2e-2)


@pytest.mark.slow
def test_a_batch_of_fewer_items_than_processes_names_the_setting(toy: Path, tmp_path: Path) -> None:
    queries = {f"q{number}": f"ask{number}" for number in range(4)}
    write_judged(tmp_path / "pairs", queries, {query: {"d0": 1} for query in queries}, "train")
    (tmp_path / "pairs" / "corpus.jsonl").write_text('{"_id": "d0", "title": "", "text": "say0 and say1"}\n')
    data = {"sets": [{"path": str(tmp_path / "pairs"), "instruction": INSTRUCTION}], "max_document_length": 16}
    stage = {"kind": "contrastive", "steps": 1, "batch_size": 2, "negatives": 0}
    result = launched(tmp_path / "run", recipe_of(toy, tmp_path / "run", data=data, stages=[stage]), *TORCHRUN)
    said = "stages[].batch_size: the different documents of a batch are 1, fewer than the 2 processes that share them."
    assert result.returncode != 0
    assert said in " ".join(result.stderr.split()), result.stderr
    assert "KeyError" not in result.stderr


@pytest.mark.slow
def test_arithmetic_in_bfloat16_is_near_that_of_the_weights(toy: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Started by accelerate's own command, which on CPUs starts one process."""
    recipe = recipe_of(toy, tmp_path)
    recipe["model"]["dtype"] = "bfloat16"
    found = command_losses(tmp_path, recipe, *ACCELERATE)
    exact = [loss for *_, loss in losses(uninterrupted)]
    assert found[0] != exact[0]
    assert found[:2] == pytest.approx(exact[:2], rel=0.1)


def test_the_step_of_the_best_score_is_counted_over_all_stages(toy: Path, tmp_path: Path) -> None:
    dev = {"path": str(toy / "dev"), "instruction": INSTRUCTION, "every": 1, "queries": 20, "documents": 40}
    content = recipe_of(toy, tmp_path, dev=dev)
    first, second = content["stages"]
    assert train(TrainRecipe.model_validate(content | {"stages": [{**first, "learning_rate": 1e-12}, second]}))
    scores = [(entry["dev"]["hybrid"], entry["stage"], entry["step"]) for entry in log_of(tmp_path) if "dev" in entry]
    best, stage, step = max(scores, key=lambda score: score[0])
    assert stage == 1
    card = tmp_path / "adapter" / "README.md"
    assert f"nDCG@10 on dev was best after step {first['steps'] + step} of 9: {best:.3f}." in card.read_text()
    likelihood = {"kind": "query_likelihood", "steps": 1, "batch_size": 8, "before": "", "after": ""}
    stages = [{**first, "learning_rate": 1e-12}, second, likelihood]  # the last one has no score
    assert train(TrainRecipe.model_validate(content | {"stages": stages}))
    assert "the weights are those of the last step" in card.read_text()


def test_a_step_of_two_batches_has_the_mean_of_their_losses(toy: Path, tmp_path: Path) -> None:
    content = recipe_of(toy, tmp_path, lora=WITHOUT_DROPOUT)
    single = {**content["stages"][0], "steps": 4, "learning_rate": 1e-12}
    assert train(TrainRecipe.model_validate(content | {"stages": [single]}))
    places = {"work": str(tmp_path / "double" / "work"), "output": str(tmp_path / "double" / "adapter")}
    double = {**single, "steps": 2, "accumulate": 2}
    assert train(TrainRecipe.model_validate(content | places | {"stages": [double]}))
    one, two, three, four = [loss for *_, loss in losses(tmp_path)]
    means = [(one + two) / 2, (three + four) / 2]
    # The regulariser's weight grows with the steps, which are other ones.
    assert [loss for *_, loss in losses(tmp_path / "double")] == pytest.approx(means, rel=1e-2)


def test_a_checkpoint_has_the_trained_weights_alone(toy: Path, tmp_path: Path) -> None:
    """Also where the LM head is the embedding, both frozen."""
    adapters = [Adapter(load(toy / "tied"), LoraRecipe(r=2), seed) for seed in (1, 2)]
    first, second = (adapter.state() for adapter in adapters)
    assert first.keys() == adapters[0].trained().keys()
    assert any(not torch.equal(tensor, second[name]) for name, tensor in first.items())
    kept = {name: tensor.clone() for name, tensor in first.items()}
    adapters[1].load(kept)
    assert all(torch.equal(tensor, adapters[1].trained()[name]) for name, tensor in kept.items())
    fewer = {name: tensor for name, tensor in kept.items() if "layers.0.self_attn.k_proj.lora_A" not in name}
    with raises(KeyError, naming="peft.base_model.model.model.layers.0.self_attn.k_proj.lora_A.default.weight"):
        adapters[1].load(fewer)


def test_another_recipe_is_refused(toy: Path, uninterrupted: Path) -> None:
    changed = recipe_of(toy, uninterrupted, seed=5)
    with raises(ResumeError, naming="plan.json"):
        train(TrainRecipe.model_validate(changed))
    changed = recipe_of(toy, uninterrupted)
    changed["stages"][1]["learning_rate"] = 0.02
    with raises(ResumeError, naming="(stages.1.learning_rate: 0.01 there, 0.02 now)"):
        train(TrainRecipe.model_validate(changed))


def test_an_adapter_appears_whole(
    toy: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails while it writes leaves the adapter before; the same command writes it, without leftovers."""
    work = shutil.copytree(uninterrupted, tmp_path / "again")
    recipe = TrainRecipe.model_validate(recipe_of(toy, work))
    (work / "adapter" / "old.txt").touch()  # of the adapter before
    before = {path.name: path.read_bytes() for path in (work / "adapter").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("lightretriever.artifacts.training.adapter._settings", None)
        with pytest.raises(TypeError):
            train(recipe)
    assert {path.name: path.read_bytes() for path in (work / "adapter").iterdir()} == before
    assert train(recipe)
    assert {path.name for path in (work / "adapter").iterdir()} == before.keys() - {"old.txt"}
    assert {path.name for path in work.iterdir()} == {"adapter", "work"}


def test_what_is_no_adapter_is_not_replaced(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "thesis.tex").touch()
    with raises(BundleError, naming="adapter_config.json"):
        train(TrainRecipe.model_validate(recipe_of(toy, tmp_path)))
    assert not (tmp_path / "work" / "log.jsonl").exists()


def test_a_development_set_whose_relevant_documents_are_elsewhere_is_refused(toy: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(toy / "dev", tmp_path / "dev")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tnowhere\t1\nq1\td1\t0\n")
    with raises(CorpusError, naming=f"dev.path is {folder}"):
        train(TrainRecipe.model_validate(recipe_of(toy, tmp_path, dev={"path": str(folder), "instruction": "find"})))


@pytest.mark.slow
def test_training_lifts_ranking_from_chance_to_near_one(toy: Path, tmp_path: Path) -> None:
    """Train, table, encode, index and search with the service's engine, before and after."""
    steps = {"kind": "contrastive", "steps": 150, "batch_size": 32, "negatives": 0, "learning_rate": 0.01}
    dev = {"path": str(toy / "dev"), "split": "dev", "instruction": INSTRUCTION, "every": 75, "documents": 60}
    changes: dict[str, Any] = {"model": {"path": str(toy / "model"), "device": "cpu", "centre_head": True}, "dev": dev}
    changes |= {"lora": {"r": 16, "alpha": 32, "dropout": 0.0}, "idf_rows": True, "stages": [steps]}
    file = save(tmp_path / "train.yaml", recipe_of(toy, tmp_path, **changes))
    assert "pairs" in run("train", file)  # what became of the data is said
    before = measured(toy, tmp_path / "before", None)
    after = measured(toy, tmp_path / "after", tmp_path / "adapter")
    for system in ("dense", "sparse", "hybrid"):
        assert before[system]["nDCG@10"] < 0.4, before
        assert after[system]["nDCG@10"] > 0.85, after
    assert after["hybrid"]["nDCG@10"] > 0.95, after
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "| pairs |" in card
    assert str(toy) not in card
    assert str(toy) not in (tmp_path / "adapter" / "adapter_config.json").read_text()


def measured(toy: Path, work: Path, adapter: Path | None) -> dict[str, dict[str, float]]:
    """Measures of a bundle of the held-out set, by system."""
    work.mkdir()
    model = {"path": str(toy / "model"), "adapter": adapter and str(adapter)}
    sections: dict[str, Any] = {"corpus": {"path": str(toy / "held-out"), "name": "toy"}, "encode": {"max_length": 16}}
    run("build", write_recipe(work, model, documents=1, tasks={"find": INSTRUCTION}, **sections))
    metrics: dict[str, dict[str, float]]
    metrics = evaluate_bundle(work / "bundle", toy / "held-out", work / "evaluation")["metrics"]
    shutil.rmtree(work / "work")
    return metrics
