"""deploy/install/install in a copy of the checkout: what it does without touching the network."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    copy = tmp_path / "checkout"
    for folder in ("deploy/install", "deploy/requirements"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def install(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with a pip that has no package index, so that whatever it wants to install fails at once."""
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", **environment}
    command = [str(checkout / "deploy" / "install" / "install"), *arguments]
    return subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [(), ("everything",), ("pipeline", "docs")])
def test_an_unknown_use_is_refused(checkout: Path, arguments: tuple[str, ...]) -> None:
    run = install(checkout, *arguments)
    assert run.returncode == 2
    assert "runtime|import|pipeline|loadtest|docs|release|dev" in run.stderr
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_named(checkout: Path, tmp_path: Path) -> None:
    run = install(checkout, "runtime", PYTHON=str(tmp_path / "python3.10"))
    assert run.returncode == 1
    assert "no Python 3.11 or newer found" in run.stderr
    assert "PYTHON=" in run.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.slow
def test_a_failed_installation_is_begun_anew(checkout: Path) -> None:
    first = install(checkout, "runtime", PYTHON=sys.executable)
    assert first.returncode != 0
    assert "making .venv" in first.stdout
    assert (checkout / ".venv" / "incomplete").exists()
    assert wants_a_new_environment(checkout)


def wants_a_new_environment(checkout: Path) -> bool:
    """Whether it looks for a Python to make .venv with; there is none, so it goes no further."""
    run = install(checkout, "runtime", PYTHON="/nonexistent/python3")
    return run.returncode == 1 and "no Python 3.11 or newer found" in run.stderr


def make_installed(checkout: Path, use: str = "runtime") -> None:
    """Let `checkout` look as after an installation: a real environment and the stamp of the lists."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(checkout / ".venv")], check=True)
    (checkout / ".venv" / "checkout").write_text(f"{checkout}\n")
    lists = ["pyproject.toml", "deploy/requirements/build.txt", f"deploy/requirements/{use}.txt"]
    stamp = subprocess.run(["sha256sum", *lists], cwd=checkout, check=True, capture_output=True, text=True).stdout
    (checkout / ".venv" / f"installed-{use}").write_text(stamp)


def test_nothing_to_do(checkout: Path) -> None:
    make_installed(checkout)
    run = install(checkout, "runtime")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["pyproject.toml", "deploy/requirements/runtime.txt"])
def test_a_changed_list_is_installed(checkout: Path, name: str) -> None:
    make_installed(checkout)
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    run = install(checkout, "runtime")
    assert run.returncode != 0
    assert "making .venv" not in run.stdout
    assert (checkout / ".venv" / "incomplete").exists()


def test_a_moved_checkout_gets_a_new_environment(checkout: Path) -> None:
    make_installed(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert wants_a_new_environment(moved)


def test_a_vanished_python_gets_a_new_environment(checkout: Path) -> None:
    make_installed(checkout)
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3.11")
    assert wants_a_new_environment(checkout)


def test_two_at_once_take_turns(checkout: Path) -> None:
    make_installed(checkout)
    command = ["flock", "pyproject.toml", "cat"]
    with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"\n")
        assert holder.stdout.readline() == b"\n"  # it has the lock
        waiting = subprocess.Popen([checkout / "deploy" / "install" / "install", "runtime"])
        time.sleep(0.5)
        assert waiting.poll() is None
        holder.stdin.close()
        assert waiting.wait() == 0
