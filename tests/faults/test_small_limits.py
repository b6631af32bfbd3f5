"""Limits too small to serve with: one line says what is wrong and the remedy."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from lightretriever.artifacts.bundle.reader import Bundle


def serve(
    bundle: Bundle, limits: str, environment: Mapping[str, str], workers: int
) -> "subprocess.CompletedProcess[str]":
    """Serve under limits of the shell until the process ends by itself."""
    command = f'{limits} exec "$0" -m lightretriever.service.cli serve "$1" --port 0 --workers {workers}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, str(bundle.path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("limits", "environment", "says"),
    [
        ("ulimit -n 32;", {}, ("may have 32 files and connections open", "Allow 256 or more: ulimit -n 1024.")),
        ("ulimit -v 1500000;", {}, ("may have 1,536,000,000 bytes of address space", "ulimit -v unlimited")),
        ("", {"_JAVA_OPTIONS": "-Xmx8m"}, ("_JAVA_OPTIONS='-Xmx8m'", "Unset _JAVA_OPTIONS")),
        ("", {"_JAVA_OPTIONS": "-Da=b -XX:MaxRAM=8m"}, ("_JAVA_OPTIONS='-Da=b", "Unset _JAVA_OPTIONS")),
    ],
    ids=["files", "space", "heap", "ram"],
)
def test_the_end_says_why(
    tiny_bundle: Bundle, limits: str, environment: dict[str, str], says: tuple[str, str], workers: int
) -> None:
    done = serve(tiny_bundle, limits, environment, workers)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for words in says:
        assert words in lines[0]


def test_java_that_can_not_start_is_no_fault_of_the_bundle(tiny_bundle: Bundle) -> None:
    line = 'ulimit -v 1500000; exec "$0" -m lightretriever.service.cli verify "$1"'
    done = subprocess.run(["sh", "-c", line, sys.executable, str(tiny_bundle.path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: This process may have 1,536,000,000 bytes of address space, too few for Java")
    assert done.stderr.count("\n") == 1


def test_workers_without_a_folder_for_their_metrics_are_one_line(tiny_bundle: Bundle) -> None:
    """No file may have a byte, so no folder for temporary files can be used."""
    done = serve(tiny_bundle, "ulimit -f 0;", {}, 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --workers needs a folder that it can write to")
    assert "TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1
