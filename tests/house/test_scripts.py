"""Every script says how it is started, and then finds what it imports. None of them is run here."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path.relative_to(ROOT)
    for folder in ("demo", "deploy/image", "deploy/install", "research")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]
pytestmark = pytest.mark.slow

AS_FILE = "import runpy, sys; sys.path[0] = sys.argv[1]; runpy.run_path(sys.argv[2], run_name='imported')"
AS_MODULES = "import importlib, sys; [importlib.import_module(module) for module in sys.argv[1:]]"


def started_as(script: Path) -> str:
    """The way in which a script's own text says that it is started: there has to be exactly one."""
    text = (ROOT / script).read_text(encoding="utf-8")
    [way] = [way for way in (f"python -m {module_of(script)}", f"python {script}") if way in text]
    return way


def module_of(script: Path) -> str:
    return ".".join(script.with_suffix("").parts).removesuffix(".__main__")


MODULES = [module_of(script) for script in SCRIPTS if " -m " in started_as(script)]
FILES = [script for script in SCRIPTS if " -m " not in started_as(script)]


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-c", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_modules_find_what_they_import() -> None:
    assert MODULES
    run(AS_MODULES, *MODULES)


@pytest.mark.parametrize("script", FILES, ids=str)
def test_a_file_finds_what_it_imports(script: Path) -> None:
    run(AS_FILE, str(script.parent), str(script))
