"""The command `lightretriever` as a terminal runs it, but in this process, which saves its start."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from lightretriever.service.cli import main

__all__ = ["Done", "run_command"]


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run_command(*words: str | Path) -> Done:
    """Run a command to its end."""
    code: object = 0
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", "") for _ in range(2))
    arguments = ["lightretriever", *map(str, words)]
    with patch.object(sys, "argv", arguments), redirect_stdout(output), redirect_stderr(errors):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int)
    said = []
    for stream in (output, errors):
        stream.seek(0)
        said.append(stream.read())
    return Done(code, *said)
