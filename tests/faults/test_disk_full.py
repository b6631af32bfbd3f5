"""No room on the disk: one line that names the file and the remedy, nothing half-written, and on with the same command.
Limits too small to serve with: one line says what is wrong and the remedy.

A bound on the size of a file (RLIMIT_FSIZE) stands for the full disk everywhere; where file systems may be mounted, a
full one is used as well.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from tests.faults.commands import Command, Done, finished, run
from tests.faults.conftest import Figure
from tests.faults.test_stop import write_recipe, write_train_recipe
from tests.service.process import ROOT, SCRIPT, is_ready
from tests.support.commands import only
from tests.support.machine import small_disk
from tests.support.recipes import change, files
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import free_port, wait_until

ERROR = 2
# What is written, in this order, and a bound on the size of a file that only the last of them breaks.
STEPS: list[tuple[list[str], int, str]] = [
    (["table"], 100, r"work/backbone\.json"),
    (["table"], 10_000, r"work/tokenizer\.json"),
    (["table"], 30_000, r"work/tables/\w+/part-0000000\.npy"),
    (["encode"], 16_000, r"work/encoded/\w{32}"),
    (["index"], 10_000, r"\.bundle\.new/tokenizer\.json"),
    (["index"], 20_000, r"\.bundle\.new/tables/\w+\.npy"),
    (["index"], 30_000, r"\.bundle\.new/vectors\.partial"),
    (["index", "--dimension", "8"], 20_000, r"\.bundle\.new/lucene"),
]


def roomy_recipe(folder: Path) -> Path:
    """A recipe whose files differ in size enough for `STEPS`."""
    return change(write_recipe(folder, documents=300), {"encode.max_length": 16, "encode.shard_size": 100})


def error_of(done: Done) -> str:
    """The one line of a command that failed as it should."""
    assert done.status == ERROR, done.output
    assert "Traceback" not in done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert "Look at free space and permissions" in line, line
    return line


def left_behind(folder: Path) -> list[str]:
    """What nobody wants to find after a failure."""
    return [name for name in files(folder) if re.search(r"partial|\.new/|\.old/|^bundle", name)]


def assert_every_step_stops(folder: Path, steps: list[tuple[list[str], int, str]]) -> None:
    """Each step fails for want of room; then, with room, the command of the last step of a stage succeeds."""
    recipe = folder / "recipe.yaml"
    older = files(folder / "bundle")
    for number, (arguments, file_bytes, file) in enumerate(steps):
        stage, *options = arguments
        command = [*only(stage), str(recipe), *options] + (["--overwrite"] if stage == "index" else [])
        line = error_of(run(Command(command, file_bytes=file_bytes)))
        assert re.search(file, line), line
        assert files(folder / "bundle") == older
        assert [name for name in left_behind(folder) if not name.startswith("bundle/")] == []
        if number + 1 == len(steps) or steps[number + 1][0][0] != arguments[0]:
            finished(run(Command(command)))
    assert verify_bundle(folder / "bundle") == []
    assert Bundle.open(folder / "bundle").manifest.documents == 300


@pytest.mark.slow
def test_a_full_disk_stops_every_stage_with_one_line(tmp_path: Path, full: bool, figure: Figure) -> None:
    """Where there was no bundle before, and in full also where there was one, which stays as it is."""
    roomy_recipe(tmp_path)
    assert_every_step_stops(tmp_path, STEPS if full else STEPS[2:5] + STEPS[7:])
    if full:
        shutil.rmtree(tmp_path / "work")
        shutil.rmtree(tmp_path / "bundle")
        make_tiny_bundle(tmp_path / "bundle", documents=20)
        assert_every_step_stops(tmp_path, STEPS)
        figure("full_disk_failures", 0, f"of {2 * len(STEPS)}")


@pytest.mark.full_faults
def test_a_full_disk_stops_the_training(tmp_path: Path) -> None:
    recipe = write_train_recipe(tmp_path)
    for file_bytes in (100, 1_000, 20_000):
        line = error_of(run(Command(["train", str(recipe)], file_bytes=file_bytes)))
        assert str(tmp_path / "work") in line
        assert left_behind(tmp_path) == []
        assert not (tmp_path / "adapter").exists()
    finished(run(Command(["train", str(recipe)])))


@pytest.mark.full_faults
def test_a_small_disk_that_grows(tmp_path: Path) -> None:
    """A whole build, over and over, on a real disk that has a little more room each time."""
    recipe, disk = roomy_recipe(tmp_path), tmp_path / "disk"
    places = ["--work", str(disk / "work"), "--output", str(disk / "bundle")]
    failures = 0
    with small_disk(disk, "16k") as mounted:
        if not mounted:
            pytest.skip("no file system may be mounted here; test_a_full_disk_stops_every_stage_with_one_line has run")
        for size in range(100, 4000, 100):
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)
            done = run(Command(["build", str(recipe), *places]))
            if done.status == 0:
                break
            assert str(disk) in error_of(done)
            assert left_behind(disk) == []
            failures += 1
        assert verify_bundle(disk / "bundle") == []
    assert failures > 0


@contextmanager
def nowhere(kind: str) -> Iterator[int]:
    """Where nothing can be written to: a full disk, or a pipe whose reader is gone."""
    if kind == "full disk":
        end = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, end = os.pipe()
        os.close(reader)
    try:
        yield end
    finally:
        os.close(end)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("full disk", 1), ("closed pipe", 2)])
def test_a_service_that_can_not_write_its_log_serves_on(tiny_path: Path, kind: str, workers: int) -> None:
    """Neither log lines nor the line that says it is ready can be written."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", SCRIPT, "127.0.0.1", str(port), str(workers), str(tiny_path)]
    settings = {"LIGHTRETRIEVER_WARM_UP_QUERIES": "3", "LIGHTRETRIEVER_DEADLINE_MS": "60000"}
    with nowhere(kind) as end:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **settings}, stdout=end, stderr=end)
    try:
        wait_until(lambda: is_ready(url))
        for _ in range(20):
            answer = httpx2.post(f"{url}/search", json={"query": "music"}, timeout=60)
            assert (answer.status_code, answer.json()["degraded"]) == (200, [])
            assert httpx2.post(f"{url}/search", json={"query": ""}, timeout=60).status_code == 422
        assert is_ready(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


SPACE = "This process may have 1,536,000,000 bytes of address space, too few for Java"
SERVE = 'serve "$1" --port 0 --workers {}'
LIMITS = {
    "files": ("ulimit -n 32;", "", ("may have 32 files and connections open", "Allow 256 or more: ulimit -n 1024.")),
    "space": ("ulimit -v 1500000;", "", (SPACE, "ulimit -v unlimited")),
    "heap": ("", "-Xmx8m", ("_JAVA_OPTIONS='-Xmx8m'", "Unset _JAVA_OPTIONS")),
    "ram": ("", "-Da=b -XX:MaxRAM=8m", ("_JAVA_OPTIONS='-Da=b", "Unset _JAVA_OPTIONS")),
}


@pytest.mark.parametrize(
    ("command", "limits", "java", "says"),
    [
        *(
            pytest.param(SERVE.format(workers), *limit, marks=pytest.mark.slow, id=f"{name}-{workers}")
            for name, limit in LIMITS.items()
            for workers in (1, 2)
        ),
        # No file may have a byte, so no folder for temporary files can be used.
        (SERVE.format(2), "ulimit -f 0;", "", ("--workers needs a folder that it can write to", "TMPDIR")),
        ('verify "$1"', *LIMITS["space"]),  # it is no fault of the bundle
    ],
)
def test_the_end_says_why(tiny_path: Path, command: str, limits: str, java: str, says: tuple[str, str]) -> None:
    line = f'{limits} exec "$0" -m lightretriever.service.cli {command}'
    environment = {**os.environ, **({"_JAVA_OPTIONS": java} if java else {})}
    arguments = ["sh", "-c", line, sys.executable, str(tiny_path)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (error,) = (line for line in done.stderr.splitlines() if not line.startswith("{"))
    assert error.startswith("error: ")
    for words in says:
        assert words in error
