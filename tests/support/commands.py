"""The command `lightretriever` as a terminal runs it, but in this process, which saves its start."""

import io
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner, Result

from lightretriever.service.cli import app, main

ROOT = Path(__file__).resolve().parents[2]


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


def only(stage: str) -> list[str]:
    """The words of a command that runs one stage of a build."""
    return ["build", "--from", stage, "--until", stage]


def invoke(*words: object) -> Result:
    """Run a command through Typer's own runner, which keeps the exception that ends it."""
    return CliRunner().invoke(app, [str(word) for word in words])


def run(*words: object) -> str:
    """Run a command to its success, and give all that it writes. The exception that ends it otherwise is raised."""
    result = _succeeded(*words)
    return result.stdout + result.stderr


def summary_of(*words: object) -> dict[str, Any]:
    """Run a command to its success, and give the JSON object that it writes, which is all that stdout has."""
    return documented(json.loads(_succeeded(*words, "--json").stdout), words)


def documented(found: dict[str, Any], words: Sequence[object]) -> dict[str, Any]:
    """The JSON object of a command's words, whose keys are those that docs/commands.md names."""
    section = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").partition("\n## The summary as JSON\n")[2]
    name = "evaluate --tune" if "--tune" in words else found.get("stage", found["command"])
    keys = set[str]()
    for of, text in re.findall(r"^- ([^:\n]*): ((?:.|\n(?=  ))*)", section, flags=re.MULTILINE):
        if of == "all" or f"`{name}`" in of:
            keys |= set(re.findall(r"`(\w+)`", text))
    assert found["command"] == words[0]
    assert found.keys() <= keys
    return found


def _succeeded(*words: object) -> Result:
    result = invoke(*words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result
