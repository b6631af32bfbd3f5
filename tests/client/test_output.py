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
LOST = "error: The output can't be written: {}. Send it to another place.\n"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A service whose hits no ASCII text has."""
    hit = {**FOUND["hits"][0], "id": CHINESE, "fields": {"title": CHINESE, "text": CHINESE * 100}}  # type: ignore[index]
    with Scripted(*[answer({**FOUND, "hits": [hit] * 500})] * 100) as server:
        yield server.url


def run(*arguments: str, shell: str = '"$@"', **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, by a line of the shell."""
    command = ["bash", "-o", "pipefail", "-c", shell, "bash", sys.executable, "-m", "lightretriever.service.cli"]
    variables = {**os.environ, **environment}
    return subprocess.run([*command, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


SEARCH = ["search", CHINESE, "--url", "SERVICE"]


@pytest.mark.parametrize(
    "command",
    [["--help"], ["verify", "BUNDLE"], SEARCH, [*SEARCH, "--json"]],
    ids=["help", "verify", "search", "search as JSON"],
)
def test_output_that_can_not_be_written_is_one_line_and_status_2(
    tiny_path: Path, service: str, command: list[str]
) -> None:
    arguments = [{"BUNDLE": str(tiny_path), "SERVICE": service}.get(word, word) for word in command]
    for place, reason in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        done = run(*arguments, shell=f'"$@" {place}')
        assert done.returncode == 2
        assert done.stderr.endswith(LOST.format(reason))
        assert "Traceback" not in done.stderr
    done = run(*arguments, shell='"$@" | sleep 0')  # a closed pipe ends a command without a word
    assert done.returncode == 141
    assert "rror" not in done.stderr
    assert "Traceback" not in done.stderr
    if command[0] != "--help" and "--json" not in command:  # nor need there be a place for errors
        for ends, status in (("2>&-", 0), (">&- 2>/dev/full", 2)):
            assert run(*arguments, shell=f'"$@" {ends}').returncode == status


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
