"""Every script finds what it imports when it is started in the way its own text says. None of them is run here."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path.relative_to(ROOT)
    for folder in ("demo", "deploy/image", "deploy/install", "docs/generate", "recipes")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]
AS_FILE = "import runpy, sys; sys.path[0] = sys.argv[1]; runpy.run_path(sys.argv[2], run_name='imported')"
AS_MODULE = "import importlib, sys; importlib.import_module(sys.argv[1])"


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_finds_what_it_imports(script: Path) -> None:
    module = ".".join(script.with_suffix("").parts)
    text = (ROOT / script).read_text(encoding="utf-8")
    started = [f"python -m {module}", f"python {script}"]
    assert sum(command in text for command in started) == 1, "its text says how it is started, in one way"
    command = [AS_MODULE, module] if started[0] in text else [AS_FILE, str(script.parent), str(script)]
    done = subprocess.run([sys.executable, "-c", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
