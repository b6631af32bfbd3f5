"""SIGINT, SIGTERM and SIGKILL at random moments of every command: on with the same command to the same end. The first
two also end with one line and the right status, and leave nothing behind."""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from tests.faults.commands import Command, Done, finished, lasted, run
from tests.faults.conftest import Figure
from tests.support import recipes
from tests.support.biencoder import save_biencoder
from tests.support.commands import only
from tests.support.models import save_model
from tests.support.recipes import change, content, files
from tests.support.tiny import make_tiny_bundle
from tests.support.toy import save_toy_model, write_toy_set

pytestmark = pytest.mark.slow

SEED = 20_262
TASKS = {"web": "Given a web search query, retrieve relevant passages", "fact": "Given a claim, find its evidence"}
ROOT = Path(__file__).parents[2]
BUILD = ("start", "begin", "table", "encode", "tables of the bundle", "lucene", "dense", "manifest")
RUBBISH = re.compile(r"partial|\.new/|\.old/|(words|bm25|query-model)-|/index/")


def write_recipe(folder: Path, documents: int = 40) -> Path:
    """A model, a corpus, and a recipe over both, which is returned; `work` and `bundle` lie beside it."""
    encode = {"max_length": 48, "top_k": 30, "shard_size": 4}
    model = save_model(folder / "model", "llama")
    return recipes.write_recipe(folder, model, documents=documents, tasks=TASKS, encode=encode)


def write_train_recipe(folder: Path) -> Path:
    """A toy model, its pairs, and a recipe of two stages for them, which is returned."""
    save_toy_model(folder / "model")
    write_toy_set(folder / "pairs", "train", 200, seed=1)
    contrastive = {"kind": "contrastive", "steps": 4, "batch_size": 8, "negatives": 0, "sparse_temperature": 1.0}
    parts = {"lora": {"r": 8, "alpha": 16, "dropout": 0.1}, "stages": [{**contrastive, "steps": 3}, contrastive]}
    recipe = recipes.training(folder, folder / "model", folder / "pairs", **parts)
    return recipes.save(folder / "train.yaml", recipe)


class Stopper:
    """Ends commands at random moments of a stage, with SIGINT and SIGTERM in turn or with SIGKILL, and looks at what
    they leave."""

    def __init__(self, folder: Path, *, kills: bool = False) -> None:
        self.stopped = Counter[str]()  # by stage
        self._folder = folder
        self._random = np.random.default_rng(SEED)
        self._numbers = cycle([signal.SIGKILL] if kills else [signal.SIGINT, signal.SIGTERM])

    def run(self, *arguments: object, stage: str, within: float, kept: str = r"^$") -> Done:
        """Run a command and end it `within` so many seconds of the stage; it may have ended before. What an earlier
        run had finished (`kept`) is still there, the same bytes."""
        before = {name: digest for name, digest in files(self._folder).items() if re.search(kept, name)}
        number, after = next(self._numbers), float(self._random.uniform()) * within
        done = run(Command([*map(str, arguments)], kill=(stage, after), signal=number))
        if number == signal.SIGKILL:
            assert done.status in (0, -number), done.output
            self.stopped[stage] += done.status != 0
            return done
        if done.status in (-number, 128 + number) and not re.search(r"^stopped by ", done.output, re.MULTILINE):
            # All was done, and the signal met a process that was about to end.
            assert re.search(r"^took ", done.output, re.MULTILINE), done.output
            done = done._replace(status=0)
        if done.status:
            self.stopped[stage] += 1
            assert done.status == 128 + number, (arguments, stage, done)
            assert "Traceback" not in done.output, done.output
            lines = [line for line in done.output.splitlines() if "stopp" in line]
            assert lines == done.output.splitlines()[-1:], done.output
            assert re.fullmatch(rf"stopped by {signal.Signals(number).name}\. The same command .*\.", lines[0])
        assert rubbish(self._folder) == []
        assert before.items() <= files(self._folder).items()
        return done


def rubbish(folder: Path) -> list[str]:
    return [name for name in files(folder) if RUBBISH.search(name)]


class Job(NamedTuple):
    """A command, the stages in which it is ended in the short form and in full, the folders it makes, what they hold,
    how long its last stage takes, and the files that an ended run leaves as they were."""

    command: list[str]
    stages: tuple[tuple[str, ...], tuple[str, ...]]
    makes: tuple[str, ...]
    content: Callable[[Path], object]
    last_s: float
    kept: str = r"^$"


def a_build(folder: Path) -> Job:
    def made(folder: Path) -> object:
        return content(folder / "bundle"), files(folder / "work")

    stages = (("begin", "table", "encode", "lucene", "dense"), BUILD)
    return Job(["build", str(write_recipe(folder)), "--overwrite"], stages, ("work", "bundle"), made, 0.05)


def a_training(folder: Path) -> Job:
    def made(folder: Path) -> object:
        found = files(folder / "adapter")
        del found["README.md"]  # which tells how long the training took
        assert "adapter_model.safetensors" in found
        return found

    command, stages = ["train", str(write_train_recipe(folder))], ("begin", "train")
    return Job(command, (stages, stages), ("work", "adapter"), made, 0.2, r"examples\.jsonl$")


def a_distillation(folder: Path) -> Job:
    parts = {"encode": {"shard_size": 10}, "distil": {"epochs": 4, "batch_size": 32, "held_out": 10}}
    recipe = recipes.write_recipe(folder, save_biencoder(folder / "model"), documents=60, tasks={"search": ""}, **parts)
    command, stages = ["build", "--until", "table", str(recipe)], ("encode", "table")
    return Job(command, (stages, stages), ("work",), lambda folder: files(folder / "work"), 0.3)


@pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("make", [a_build, a_training, a_distillation])
def test_the_same_command_goes_on_to_the_same_end(
    tmp_path: Path, full: bool, figure: Figure, make: Callable[[Path], Job], kills: bool
) -> None:
    """Where there was no bundle before, and in full also where there was one, which stays until then."""
    job = make(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    whole = finished(run(Command(job.command)))
    expected, bundle = job.content(tmp_path), tmp_path / "bundle"
    older = make_tiny_bundle(tmp_path.with_name(f"{tmp_path.name}-older"), documents=12).path
    stopper = Stopper(tmp_path, kills=kills)
    for number in range(8 if full else 1):
        for name in job.makes:
            shutil.rmtree(tmp_path / name)
        replaced = "bundle" in job.makes and number % 2
        if replaced:
            shutil.copytree(older, bundle)
        for stage in job.stages[full]:
            within = lasted(whole.stages, stage, whole.stages[stage] + job.last_s)
            if not stopper.run(*job.command, stage=stage, within=within, kept=job.kept).status:
                # It was faster this time: again, and ended as soon as the stage begins.
                shutil.rmtree(tmp_path / "work")
                stopper.run(*job.command, stage=stage, within=0)
            if replaced or bundle.exists():  # nothing, the older one, or the new one, never a part of one
                assert verify_bundle(bundle) == []
                assert Bundle.open(bundle).manifest.documents in (12 if replaced else 40, 40)
        finished(run(Command(job.command)))
        assert job.content(tmp_path) == expected
        assert {path.name for path in tmp_path.iterdir()} == before | {*job.makes}
        assert rubbish(tmp_path) == []
    # The last stage of a build is over in milliseconds.
    assert {*job.stages[full]} - {BUILD[-1]} <= stopper.stopped.keys()
    if kills and make is a_build:
        figure("kills_not_resumed", 0, f"of {stopper.stopped.total()}", kills=stopper.stopped)


def test_stopped_stages_of_a_build_leave_no_rubbish(tmp_path: Path, full: bool) -> None:
    """A fitted table, `index`, `verify` and `evaluate` by themselves."""
    recipe = change(write_recipe(tmp_path), {"distil": {"batch_size": 8, "epochs": 40, "sentences": False}})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tmusic\t1\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "playlists and a small library"}\n')
    finished(run(Command(["build", str(recipe)])))
    expected, work = content(tmp_path / "bundle"), files(tmp_path / "work")
    evaluate = ["evaluate", tmp_path / "bundle", tmp_path, "--output", tmp_path / "evaluation"]
    again: dict[str, list[Any]] = {
        "table": [*only("table"), recipe],
        "index": [*only("index"), recipe, "--overwrite"],
        "verify": ["verify", tmp_path / "bundle"],
        "evaluate": evaluate,
    }
    stopper = Stopper(tmp_path)
    for name, arguments in again.items():
        forget(tmp_path, name)
        stage, within = "table" if name == "table" else "start", 0.3
        if full:
            began = time.monotonic()
            whole = finished(run(Command([*map(str, arguments)])))
            within = time.monotonic() - began - whole.stages[stage]
        ended = 0
        for _ in range(8 if full else 1):
            forget(tmp_path, name)
            done = stopper.run(*arguments, stage=stage, within=within)
            ended += done.status != 0
            if name == "evaluate" and done.status:
                assert list((tmp_path / "evaluation").glob("*")) == []
        if not ended:  # it was faster each time
            forget(tmp_path, name)
            assert stopper.run(*arguments, stage=stage, within=0).status
        finished(run(Command([*map(str, arguments)])))
    assert content(tmp_path / "bundle") == expected
    assert files(tmp_path / "work") == work
    runs = {"dense.trec", "sparse.trec", "hybrid.trec", "bm25.trec", "evaluation.json"}
    assert runs <= {path.name for path in (tmp_path / "evaluation").iterdir()}


def forget(folder: Path, command: str) -> None:
    """Remove the output of a command that keeps what it finds, or replaces it."""
    if command == "table":
        for table in (folder / "work" / "tables").glob("*/table.npy"):
            table.unlink()
    if command == "evaluate":
        shutil.rmtree(folder / "evaluation", ignore_errors=True)


@pytest.mark.full_faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_in_two_processes_is_stopped_as_one(tmp_path: Path, number: int) -> None:
    recipe = write_train_recipe(tmp_path)
    settings = yaml.safe_load(recipe.read_text())
    settings["stages"][1]["steps"] = 400
    recipe.write_text(yaml.safe_dump(settings))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, "-m", "lightretriever.service.cli", "train", str(recipe)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "work" / "checkpoint.pt").is_file():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode != 0, errors
    assert output == ""
    assert re.search(r"stopped by SIG\w+\. The same command goes on", errors)
    assert rubbish(tmp_path / "work") == []
    assert running(str(recipe)) == []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "adapter" / "README.md").is_file()


def running(argument: str) -> list[str]:
    """Processes that have this word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.fsencode(argument) in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found


@pytest.mark.full_faults
def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    """The key itself, on a pseudo-terminal with its live progress bar."""
    recipe = write_recipe(tmp_path)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "lightretriever.service.cli", "build", str(recipe)])
    output, pressed = b"", False
    with contextlib.suppress(OSError):  # a closed terminal reads as an error
        while part := os.read(terminal, 65536):
            output += part
            if b"table" in output and not pressed:
                pressed = os.write(terminal, b"\x03") == 1
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130, output
    assert b"Traceback" not in output
    assert b"stopped by SIGINT. The same command goes on where it was.\r\n" in output
    assert rubbish(tmp_path) == []
