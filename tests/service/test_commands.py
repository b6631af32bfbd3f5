"""The console command: every command by name, each imported when it runs; and `demo`."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from lightretriever.service.cli import COMMANDS, app
from lightretriever.service.commands.serve import EXAMPLE
from tests.service.process import ROOT

HEAVY = {"faiss", "jnius", "numpy", "pydantic", "torch", "transformers"}


def test_a_command_has_its_name_its_group_and_help() -> None:
    for name, listed in COMMANDS.items():
        command = listed.load(name)
        assert command.name == name
        assert command.help
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
    assert CliRunner().invoke(app, ["--version"]).output.strip() == version("lightretriever-search")
    answer = CliRunner().invoke(app, ["serv"])
    assert answer.exit_code == 2
    assert "serve" in answer.output


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


COMMAND = [sys.executable, "-m", "lightretriever.service.cli", "demo"]


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [*COMMAND, "--unpack", "--folder", str(tmp_path / "file" / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path / 'file' / 'demo'} can't be written: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_it_is_served(tmp_path: Path) -> None:
    environment = {**os.environ, "LIGHTRETRIEVER_WARM_UP_QUERIES": "1", "LIGHTRETRIEVER_DEADLINE_MS": "60000"}
    command = [*COMMAND, "--port", "0", "--folder", str(tmp_path / "demo")]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert len(httpx2.post(f"{url}/search", json=json.loads(EXAMPLE), timeout=60).json()["hits"]) == 5
            answer = httpx2.get(f"{url}/search?q=terminal", timeout=60).json()
            assert "rules" not in answer
            assert httpx2.get(f"{url}/info", timeout=60).json()["bundle"]["normalization"] == "evidence"
        finally:
            process.terminate()
        assert process.wait(60) == 0
