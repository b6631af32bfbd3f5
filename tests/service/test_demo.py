"""`lightretriever demo`: the bundle that comes with the installation, unpacked and served; and the list of commands."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from lightretriever.service.serving.demo import EXAMPLE

from tests.service.process import ROOT

COMMAND = [sys.executable, "-m", "lightretriever.service.cli", "demo"]


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
