"""The console command: every command by name, each imported when it runs."""

import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
from lightretriever.service.cli import COMMANDS, app
from typer.main import get_command
from typer.testing import CliRunner

HEAVY = {"faiss", "jnius", "numpy", "pydantic", "torch", "transformers"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_name_its_group_and_help(name: str) -> None:
    group: Any = get_command(app)
    command = group.commands[name]
    assert (command.name, command.rich_help_panel) == (name, COMMANDS[name].panel)
    assert command.help
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_help_lists_every_command_in_its_group_and_imports_none() -> None:
    program = (
        "import sys\nfrom lightretriever.service.cli import main\nsys.argv = ['lightretriever', '--help']\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(found.stderr.split())
    assert not HEAVY & modules
    assert not {command.module for command in COMMANDS.values()} & modules
    lines = [line.strip("│ ").split(maxsplit=1) for line in found.stdout.splitlines()]
    for name, command in COMMANDS.items():
        assert [name, command.help] in lines
    groups = re.findall(r"^╭─ (\w+) ─", found.stdout, flags=re.MULTILINE)
    assert groups == ["Options", "Search", "Build", "Operate", "Research"]


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == version("lightretriever-search")


def test_an_unknown_command_is_named() -> None:
    answer = CliRunner().invoke(app, ["serv"])
    assert answer.exit_code == 2
    assert "serve" in answer.output
