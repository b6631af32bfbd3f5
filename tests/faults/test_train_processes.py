"""`lightretriever train` in two processes, when one of them fails, is killed, or does not react."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from lightretriever.artifacts.cli.summary import ErrorObject

from tests.support.toy import save_toy_model, write_toy_set
from tests.training.test_train import recipe_of


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a training set."""
    folder = tmp_path_factory.mktemp("toy")
    save_toy_model(folder / "model")
    write_toy_set(folder / "pairs", "train", 100, seed=1)
    return folder


def running(file: Path) -> dict[int, int]:
    """The processes of the training by that recipe: process ids by rank; -1 is the one that started the others."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.fsencode(file) in (folder / "cmdline").read_bytes().split(b"\0"):
                rank = re.search(rb"\0LOCAL_RANK=(\d+)\0", (folder / "environ").read_bytes())
                found[int(rank[1]) if rank else -1] = int(folder.name)
    return found


@contextmanager
def two_processes(toy: Path, work: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, int]]]:
    """A long training in two processes, and their ids by rank. In the block they have begun; after it they are gone."""
    file, recipe = work / "recipe.yaml", recipe_of(toy, work)
    recipe["stages"][0]["steps"] = 100_000
    file.write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "lightretriever.service.cli", "train", str(file), "--processes", "2", "--json"]
    temporary = work / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    with (
        (work / "stderr").open("w") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process,
    ):
        try:
            while not (work / "work" / "checkpoint.safetensors").is_file():
                assert process.poll() is None, (work / "stderr").read_text()
                time.sleep(0.05)
            yield process, running(file)
        finally:
            for one in running(file).values():
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)


def test_a_process_that_is_killed_ends_the_others_and_is_told_of(toy: Path, tmp_path: Path) -> None:
    with two_processes(toy, tmp_path) as (process, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
        assert running(tmp_path / "recipe.yaml") == {}
    error = ErrorObject.model_validate_json(output).error
    assert (error.kind, error.status, process.returncode) == ("ChildProcessError", 137, 137)
    assert error.message == "Process 1 of the training ended by SIGKILL."
    assert f"error: {error.message} {error.remedy}" in (tmp_path / "stderr").read_text().splitlines()
    assert [path.name for path in (tmp_path / "temporary").glob("*") if path.name.startswith(("train", "torch"))] == []


@pytest.mark.full_faults
def test_a_second_signal_ends_all_processes(toy: Path, tmp_path: Path) -> None:
    """Even those that don't react to the first one."""
    with two_processes(toy, tmp_path) as (process, ranks):
        for rank in (0, 1):
            os.kill(ranks[rank], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        while "once more ends it at once" not in (tmp_path / "stderr").read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        ended = time.monotonic() + 60
        while running(tmp_path / "recipe.yaml") and time.monotonic() < ended:
            time.sleep(0.05)
        assert running(tmp_path / "recipe.yaml") == {}


@pytest.mark.full_faults
def test_an_error_in_processes_is_one_object(toy: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe_of(toy, tmp_path, lora={"targets": ["nothing"]})))
    command = [sys.executable, "-m", "lightretriever.service.cli", "train", str(file), "--processes", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    error = ErrorObject.model_validate_json(done.stdout).error
    assert (done.returncode, error.status) == (2, 2), done.stderr
    assert "lora.targets" in error.message
