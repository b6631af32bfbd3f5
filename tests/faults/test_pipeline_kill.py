"""SIGKILL at random moments of every stage: the same command goes on, to the same bundle, and leaves nothing behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from artifacts.bundle import Bundle
from artifacts.verify import verify_bundle
from tests.faults.builds import content, files, write_recipe
from tests.faults.commands import Command, Commands, Done
from tests.faults.conftest import Figure
from tests.support.biencoder import save_biencoder
from tests.support.models import write_corpus
from tests.support.tiny import make_tiny_bundle
from tests.support.toy import save_toy_model, write_toy_set

SEED = 20_261
BUILD = ("begin", "table", "encode", "tables of the bundle", "lucene", "dense", "manifest")
KILLED = -9


def finished(done: Done) -> Done:
    assert done.status == 0, done.output
    return done


def lasted(stages: dict[str, float], stage: str, until: float) -> float:
    """How long a stage took, in seconds."""
    return min([began for began in stages.values() if began > stages[stage]], default=until) - stages[stage]


def assert_whole_or_absent(bundle: Path, older: int | None) -> None:
    """Where a bundle is to appear there is nothing, the older one, or the new one. Never a part of one."""
    if older is None and not bundle.exists():
        return
    assert verify_bundle(bundle) == []
    assert Bundle.open(bundle).manifest.documents in (older, 40)


def test_a_killed_build_goes_on_and_ends_in_the_same_bundle(
    commands: Commands, tmp_path: Path, full: bool, figure: Figure
) -> None:
    recipe, random = write_recipe(tmp_path), np.random.default_rng(SEED)
    command = ["build", str(recipe), "--overwrite"]
    before = {path.name for path in tmp_path.iterdir()}
    whole = finished(commands.run(Command(command)))
    expected, work = content(tmp_path / "bundle"), files(tmp_path / "work")
    older = make_tiny_bundle(tmp_path.with_name(f"{tmp_path.name}-older"), documents=12).path
    kills = dict.fromkeys(BUILD if full else ("table", "encode", "lucene"), 0)
    for number in range(8 if full else 1):
        shutil.rmtree(tmp_path / "work")
        shutil.rmtree(tmp_path / "bundle")
        if number % 2:
            shutil.copytree(older, tmp_path / "bundle")
        for stage in kills:
            after = float(random.uniform()) * lasted(whole.stages, stage, whole.stages[stage] + 0.05)
            done = commands.run(Command(command, kill=(stage, after)))
            if done.status == 0:  # it was faster this time: again, and killed as soon as the stage begins
                shutil.rmtree(tmp_path / "work")
                done = commands.run(Command(command, kill=(stage, 0.0)))
            assert done.status in (0, KILLED), done.output
            kills[stage] += done.status == KILLED
            assert_whole_or_absent(tmp_path / "bundle", 12 if number % 2 else None)
        finished(commands.run(Command(command)))
        assert content(tmp_path / "bundle") == expected
        assert files(tmp_path / "work") == work
        assert {path.name for path in tmp_path.iterdir()} == before | {"work", "bundle"}
        assert verify_bundle(tmp_path / "bundle") == []
    assert all(count for stage, count in kills.items() if stage != BUILD[-1]), kills  # that is over in milliseconds
    figure("kills_not_resumed", 0, f"of {sum(kills.values())}", kills=kills)


def train_recipe(folder: Path) -> Path:
    save_toy_model(folder / "model")
    write_toy_set(folder / "pairs", "train", 200, seed=1)
    contrastive = {"kind": "contrastive", "steps": 4, "batch_size": 8, "negatives": 0, "sparse_temperature": 1.0}
    content: dict[str, Any] = {
        "name": "toy",
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "lora": {"r": 8, "alpha": 16, "dropout": 0.1},
        "data": {"sets": [{"path": str(folder / "pairs"), "instruction": "find"}], "max_document_length": 16},
        "stages": [{"kind": "query_likelihood", "steps": 3, "batch_size": 8}, contrastive],
        "checkpoint_every": 2,
        "work": str(folder / "work"),
        "output": str(folder / "adapter"),
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(content))
    return folder / "train.yaml"


def adapter_files(folder: Path) -> dict[str, str]:
    """All but the model card, which tells how long the training took."""
    found = files(folder)
    del found["README.md"]
    assert "adapter_model.safetensors" in found
    return found


@pytest.mark.full_faults
def test_a_killed_training_goes_on_to_the_same_adapter(commands: Commands, tmp_path: Path) -> None:
    command, random = ["train", str(train_recipe(tmp_path))], np.random.default_rng(SEED)
    before = {path.name for path in tmp_path.iterdir()}
    finished(commands.run(Command(command)))
    expected = adapter_files(tmp_path / "adapter")
    shutil.rmtree(tmp_path / "work")
    shutil.rmtree(tmp_path / "adapter")
    killed = 0
    for number in range(8):
        stage = "train" if number % 2 == 0 else "begin"
        done = commands.run(Command(command, kill=(stage, float(random.uniform(0, 0.2)))))
        assert done.status in (0, KILLED), done.output
        killed += done.status == KILLED
    assert killed
    finished(commands.run(Command(command)))
    assert adapter_files(tmp_path / "adapter") == expected
    assert {path.name for path in tmp_path.iterdir()} == before | {"work", "adapter"}
    assert not [name for name in files(tmp_path / "work") if "partial" in name]


@pytest.mark.full_faults
def test_a_killed_distillation_goes_on_to_the_same_table(commands: Commands, tmp_path: Path) -> None:
    content = {
        "name": "tiny",
        "model": {"path": str(save_biencoder(tmp_path / "model")), "device": "cpu"},
        "corpus": {"path": str(write_corpus(tmp_path / "corpus.jsonl", 60)), "name": "tiny"},
        "tasks": {"search": ""},
        "default_task": "search",
        "encode": {"shard_size": 10},
        "distil": {"epochs": 4, "batch_size": 32, "held_out": 10},
        "work": str(tmp_path / "work"),
        "output": str(tmp_path / "bundle"),
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(content))
    command, random = ["distil-table", str(tmp_path / "recipe.yaml")], np.random.default_rng(SEED)
    whole = finished(commands.run(Command(command)))
    expected = files(tmp_path / "work")
    shutil.rmtree(tmp_path / "work")
    for _ in range(4):
        for stage in ("encode", "table"):
            after = float(random.uniform()) * lasted(whole.stages, stage, whole.stages[stage] + 0.3)
            done = commands.run(Command(command, kill=(stage, after)))
            assert done.status in (0, KILLED), done.output
    finished(commands.run(Command(command)))
    assert files(tmp_path / "work") == expected
