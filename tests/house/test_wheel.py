"""The distribution: one name, every file of its packages, and it works where there is no checkout."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from deploy.wheel.build import build_demo_wheel, build_wheel

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lightretriever"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline from a copy, so that nothing is left behind in the checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def test_it_is_small_and_has_every_file_of_the_packages(wheel: Path, members: dict[str, bytes]) -> None:
    """But the Java sources and classes, in whose place there is a jar."""
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 20_000_000
    expected = {"lightretriever/artifacts/sparse/search.jar"}
    apart = (PACKAGE / "artifacts" / "sparse" / "java", PACKAGE / "artifacts" / "sparse" / "classes")
    for folder, folders, files in os.walk(PACKAGE, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__" and Path(folder, name) not in apart]
        expected |= {Path(folder, name).relative_to(ROOT).as_posix() for name in files}
    assert {name for name in members if ".dist-info/" not in name} == expected


def test_its_jar_has_every_language_and_writes_and_searches(installed: Path, tmp_path: Path) -> None:
    """Where pyserini is not installed: its jar would have more."""
    lines = [
        "import sys; sys.modules['pyserini'] = None",
        "from typing import get_args",
        "from lightretriever.artifacts.sparse.jvm import class_path, start_jvm",
        "from lightretriever.artifacts.sparse.vocabulary import Language, Vocabulary",
        "from tests.support.tiny import make_tiny_bundle",
        "import numpy as np, pathlib",
        "print(*class_path())",
        "start_jvm()",
        "assert all(Vocabulary(None, one).terms_of(['houses 音楽'])[0] for one in get_args(Language))",
        "bundle = make_tiny_bundle(pathlib.Path('bundle'), vocabulary='words')",
        "print(bundle.sparse().find((['music'], np.ones(1, np.float32)), 5, np.empty(0, np.int64)).ordinals.size)",
    ]
    code = f"import sys; sys.path.append({str(ROOT)!r})\n" + "\n".join(lines)
    jar, found = said(installed / "python", "-c", code, place=tmp_path).split()
    assert Path(jar).is_relative_to(installed.parent)
    assert int(found) > 0


def test_the_demo_is_a_wheel_of_its_own(installed: Path, tmp_path: Path) -> None:
    unpacking = (installed / "lightretriever", "demo", "--unpack", "--folder", str(tmp_path / "demo"))
    assert "Install the demo wheel" in run(*unpacking, place=tmp_path).stderr
    install(build_demo_wheel(tmp_path / "wheels"), installed)
    said(*unpacking, place=tmp_path)
    said(installed / "lightretriever", "verify", str(tmp_path / "demo"), place=tmp_path)


def test_it_brings_the_command_the_licence_and_light_dependencies(members: dict[str, bytes]) -> None:
    parts = {name.partition(".dist-info/")[2]: data for name, data in members.items() if ".dist-info/" in name}
    assert "lightretriever = lightretriever.service.cli:main" in parts["entry_points.txt"].decode()
    assert parts["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert "licenses/NOTICE" in parts
    lines = parts["METADATA"].decode().splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert needed
    assert not [line for line in needed if any(heavy in line for heavy in ("torch", "transformers", "pyserini"))]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of a new environment that has the wheel and sees the packages of this one.

    What a .pth file adds to the path has its own .pth files ignored, so this checkout's editable installation stays
    out of sight.
    """
    place = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    commands = place / "bin"
    install(wheel, commands)
    (packages,) = place.glob("lib/python*/site-packages")
    seen = [folder for folder in sys.path if Path(folder).name in {"site-packages", "dist-packages"}]
    (packages / "visible.pth").write_text("".join(f"{folder}\n" for folder in seen), encoding="utf-8")
    return commands


def install(wheel: Path, commands: Path) -> None:
    """Install a wheel into the environment with these commands."""
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True, capture_output=True)


def run(*command: str | Path, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=place, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)


def said(*command: str | Path, place: Path) -> str:
    """The output of a command that ends well."""
    done = run(*command, place=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installation_has_the_public_names_the_command_and_no_other_name(installed: Path, tmp_path: Path) -> None:
    lines = [
        "import lightretriever",
        "from lightretriever import AsyncSearchClient, Bundle, SearchClient, SearchEngine",
        "print(lightretriever.__file__, Bundle.open.__name__, SearchClient.search.__name__)",
    ]
    file, *names = said(installed / "python", "-c", "\n".join(lines), place=tmp_path).split()
    assert Path(file).is_relative_to(installed.parent)
    assert names == ["open", "search"]
    done = run(installed / "lightretriever", "--help", place=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"serve", "build", "search"} <= set(done.stdout.split())
    for name in ("artifacts", "loadtest", "service"):
        done = run(installed / "python", "-c", f"import {name}", place=tmp_path)
        assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr
