"""Every script finds what it imports when it is started in the way its own text says. None of them is run here."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for path in (ROOT / "scripts").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
AS_FILE = "import runpy, sys; sys.path[0] = 'scripts'; runpy.run_path(sys.argv[1], run_name='imported')"
AS_MODULE = "import importlib, sys; importlib.import_module(f'scripts.{sys.argv[1]}')"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_finds_what_it_imports(script: Path) -> None:
    started = [f"python -m scripts.{script.stem}", f"python scripts/{script.name}"]
    text = script.read_text(encoding="utf-8")
    assert sum(command in text for command in started) == 1, "its text says how it is started, in one way"
    command = [AS_MODULE, script.stem] if started[0] in text else [AS_FILE, str(script.relative_to(ROOT))]
    done = subprocess.run([sys.executable, "-c", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
