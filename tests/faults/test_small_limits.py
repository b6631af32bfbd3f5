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
        ("", {"_JAVA_OPTIONS": "-Xmx8m"}, ("_JAVA_OPTIONS='-Xmx8m'", "Unset _JAVA_OPTIONS")),
        ("", {"_JAVA_OPTIONS": "-Da=b -XX:MaxRAM=8m"}, ("_JAVA_OPTIONS='-Da=b", "Unset _JAVA_OPTIONS")),
    ],
    ids=["files", "heap", "ram"],
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
