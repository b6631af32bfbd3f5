"""SIGKILL at random moments of every stage: the same command goes on, to the same bundle, and leaves nothing behind."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lightretriever.artifacts.bundle.verify import verify_bundle
from tests.faults.builds import (
    adapter_files,
    assert_whole_or_absent,
    content,
    files,
    write_distil_recipe,
    write_recipe,
    write_train_recipe,
)
from tests.faults.commands import Command, Commands, finished, lasted
from tests.faults.conftest import Figure
from tests.support.tiny import make_tiny_bundle

pytestmark = pytest.mark.slow

SEED = 20_261
BUILD = ("begin", "table", "encode", "tables of the bundle", "lucene", "dense", "manifest")
KILLED = -9


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


@pytest.mark.full_faults
def test_a_killed_training_goes_on_to_the_same_adapter(commands: Commands, tmp_path: Path) -> None:
    command, random = ["train", str(write_train_recipe(tmp_path))], np.random.default_rng(SEED)
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
    command, random = ["build", "--until", "table", str(write_distil_recipe(tmp_path))], np.random.default_rng(SEED)
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
