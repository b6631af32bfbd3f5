"""`lightretriever demo`: the bundle that comes with the installation, unpacked and served; and the list of commands."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.service.serving.demo import EXAMPLE, unpack_demo

from tests.service.process import ROOT

COMMAND = [sys.executable, "-m", "lightretriever.service.cli", "demo"]


def test_it_is_unpacked_to_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = unpack_demo(None)
    assert target == tmp_path / "cache" / "lightretriever" / "demo"
    assert verify_bundle(target) == []
    before = target.stat().st_ino
    assert unpack_demo(None).stat().st_ino == before


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [*COMMAND, "--unpack", "--folder", str(tmp_path / "file" / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: The demo bundle can't be unpacked to ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_it_is_served(tmp_path: Path) -> None:
    environment = {**os.environ, "LIGHTRETRIEVER_WARM_UP_QUERIES": "1"}
    command = [*COMMAND, "--port", "0", "--folder", str(tmp_path / "demo")]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            request = Request(f"{url}/search", EXAMPLE.encode(), {"Content-Type": "application/json"})
            with urlopen(request, timeout=60) as answer:
                assert len(json.load(answer)["hits"]) == 5
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_the_commands_are_in_groups_and_the_version_is_told() -> None:
    def said(*arguments: str) -> str:
        command = [*COMMAND[:-1], *arguments]
        environment = {**os.environ, "COLUMNS": "80"}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    text = said("--help")
    assert re.findall(r"^╭─ (\w+) ─", text, flags=re.MULTILINE) == ["Options", "Search", "Build", "Operate", "Research"]
    assert said("--version").strip() == version("lightretriever-search")
