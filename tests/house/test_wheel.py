"""The distribution: a wheel of the project holds every file of its packages, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("artifacts", "service", "loadtest")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built offline from a copy, so that nothing is left behind in the checkout."""
    copy = tmp_path_factory.mktemp("wheel") / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    for package in PACKAGES:
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(copy / "dist"), str(copy)], check=True, capture_output=True)
    (built,) = (copy / "dist").glob("lightretriever_search-*.whl")
    return zipfile.ZipFile(built)


def test_every_file_of_the_packages_is_in_it(wheel: zipfile.ZipFile) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected


def test_it_brings_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    parts = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "lightretriever = service.cli:main" in wheel.read(parts["entry_points.txt"]).decode()
    assert wheel.read(parts["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert "licenses/NOTICE" in parts


def test_its_dependencies_are_light(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(metadata).decode().splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert needed
    assert not [line for line in needed if any(heavy in line for heavy in ("torch", "transformers", "pyserini"))]
