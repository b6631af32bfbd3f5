"""What `make java` checks: that the committed class files are those of the committed sources. Needs ecj."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPARSE = Path("artifacts", "sparse")
CLASSES = ROOT / SPARSE / "classes"


def java(root: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([root / "deploy" / "java", *options], capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of sources and classes that a test may change."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "java", tmp_path / "deploy")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    for name in ("java", "classes"):
        shutil.copytree(ROOT / SPARSE / name, tmp_path / SPARSE / name)
    return tmp_path


@pytest.mark.parametrize("name", ["java/lightretriever/Packed.java", "classes/lightretriever/Packed.class"])
@pytest.mark.parametrize("change", ["written", "removed"])
def test_a_change_is_named(copy: Path, name: str, change: str) -> None:
    path = copy / SPARSE / name
    if change == "written":
        path.write_bytes(path.read_bytes() + b"\n")
    else:
        path.unlink()
    done = java(copy, "--check")
    assert done.returncode == 1
    assert name in done.stdout
    assert "Run deploy/java and commit the result." in done.stderr


def test_a_source_that_does_not_compile_changes_nothing(copy: Path) -> None:
    sums = copy / SPARSE / "classes" / "SHA256SUMS"
    before, source = sums.read_bytes(), copy / SPARSE / "java" / "lightretriever" / "Packed.java"
    whole = source.read_text("utf-8")
    source.write_text("package lightretriever; nonsense", "utf-8")
    assert java(copy).returncode != 0
    assert sums.read_bytes() == before
    source.write_text(whole.replace("is not valid UTF-8", "is not UTF-8"), "utf-8")
    assert java(copy).returncode == 0
    assert java(copy, "--check").returncode == 0
