"""Where a command's output goes: encodings without its characters, full disks and closed pipes, for every command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.scripted import FOUND, Scripted, answer
from tests.service.process import ROOT

CHINESE = "庆祝"
DISK = "error: The output can't be written: No space left on device. Send it to another place.\n"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A service whose hits no ASCII text has."""
    hit = {**FOUND["hits"][0], "id": CHINESE, "fields": {"title": CHINESE, "text": CHINESE * 100}}  # type: ignore[index]
    with Scripted(*[answer({**FOUND, "hits": [hit] * 500})] * 100) as server:
        yield server.url


def run(*arguments: str, shell: str = '"$@"', **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, by a line of the shell."""
    command = ["bash", "-o", "pipefail", "-c", shell, "bash", sys.executable, "-m", "lightretriever.service.cli"]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def commands(bundle: Path, service: str) -> dict[str, list[str]]:
    return {
        "help": ["--help"],
        "verify": ["verify", str(bundle)],
        "search": ["search", CHINESE, "--url", service],
        "search as JSON": ["search", CHINESE, "--url", service, "--json"],
    }


NAMES = list(commands(Path(), ""))


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_line_and_status_2(tiny_path: Path, service: str, name: str) -> None:
    done = run(*commands(tiny_path, service)[name], shell='"$@" >/dev/full')
    assert done.returncode == 2
    assert done.stderr.endswith(DISK)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_stdout_is_one_line_and_status_2(tiny_path: Path, service: str, name: str) -> None:
    done = run(*commands(tiny_path, service)[name], shell='"$@" >&-')
    assert done.returncode == 2
    assert done.stderr.endswith("error: The output can't be written: it is closed. Send it to another place.\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_pipe_ends_a_command_without_a_word(tiny_path: Path, service: str, name: str) -> None:
    done = run(*commands(tiny_path, service)[name], shell='"$@" | sleep 0')
    assert done.returncode == 141
    assert "rror" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["verify", "search"])
def test_without_errors_output_a_command_does_what_it_does(tiny_path: Path, service: str, name: str) -> None:
    for ends, status in (("2>&-", 0), (">&- 2>/dev/full", 2)):
        assert run(*commands(tiny_path, service)[name], shell=f'"$@" {ends}').returncode == status


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_characters_that_the_encoding_lacks_are_escaped(service: str, environment: dict[str, str]) -> None:
    done = run("search", "a", "--url", service, **{"PYTHONUTF8": "0", **environment})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u5e86\u795d" in done.stdout
    wrong = run("search", "a", "--url", f"http://{CHINESE}", **environment)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
