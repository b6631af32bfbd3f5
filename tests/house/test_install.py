"""Installing: the pinned lists are complete, within the ranges of pyproject.toml and free of contradictions; and what
deploy/install/install does in a copy of the checkout without touching the network."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import requires
from itertools import combinations
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.install import lock

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIRECT: dict[str, list[str]] = {"runtime": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
# What deploy/install/install takes for each use.
CHAINS = {
    "runtime": ("build", "runtime"),
    "pipeline": ("build", "runtime", "tracing", "pipeline"),
    "loadtest": ("build", "runtime", "tracing", "loadtest"),
    "ray": ("build", "runtime", "tracing", "pipeline", "ray"),
    "tracing": ("build", "runtime", "tracing"),
    "cluster": ("build", "runtime", "tracing", "cluster"),
    "import": ("build", "runtime", "import"),
    "client": ("client",),
    "mcp": ("mcp",),
    "docs": ("docs",),
    "release": ("build", "runtime", "release"),
    "dev": ("build", "runtime", "tracing", "cluster", "pipeline", "loadtest", "dev"),
}


def listed(name: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a list, each with its hashes."""
    text = (ROOT / "deploy" / "requirements" / f"{name}.txt").read_text().replace("\\\n", "")
    lines = [line.split("--hash=") for line in text.splitlines() if not line.startswith("#")]
    return [(Requirement(line[0].strip()), [digest.strip() for digest in line[1:]]) for line in lines]


def pins(name: str) -> dict[str, Version]:
    requirements = [requirement for requirement, _ in listed(name)]
    found: dict[str, Version] = {}
    for requirement in requirements:
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{name}.txt: {requirement} is no exact pin"
        found[canonicalize_name(requirement.name)] = Version(specifier.version)
    assert len(found) == len(requirements), f"{name}.txt names a package twice"
    return found


def test_every_extra_has_a_list_and_they_name_the_same_hashes() -> None:
    assert set(DIRECT) == set(CHAINS)
    lists = {path.stem for path in (ROOT / "deploy" / "requirements").iterdir()}
    assert lists == set(DIRECT) | {"build"}
    found: dict[str, list[str]] = {}
    for name in sorted(lists):
        for requirement, hashes in listed(name):
            assert bool(hashes) == (name in lock.HASHED), str(requirement)
            assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in hashes), str(requirement)
            assert name not in lock.HASHED or found.setdefault(str(requirement), hashes) == hashes


@pytest.mark.parametrize("use", CHAINS)
def test_the_lists_of_a_use_agree_and_have_direct_dependencies_within_their_range(use: str) -> None:
    # None of these adds to another, so a pin may be in several.
    pairs = combinations([pins(name).keys() for name in ("cluster", "pipeline", "loadtest")], 2)
    both = {name for one, other in pairs for name in one & other}
    found: dict[str, Version] = {}
    for part in CHAINS[use]:
        for name, version in pins(part).items():
            assert name not in found or (name in both and found[name] == version), f"{part}.txt: {name}"
            found[name] = version
    for requirement in map(Requirement, DIRECT[use]):
        assert found[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)


@pytest.mark.parametrize("use", ["runtime", "tracing", "cluster", "import", "pipeline", "loadtest", "dev"])
def test_the_lists_of_a_use_have_all_that_their_packages_need(use: str) -> None:
    there = {name for part in CHAINS[use] for name in pins(part)}
    for name in there - {"pyserini", "torch"}:  # see WITHOUT_DEPENDENCIES; torch's depend on the build
        for requirement in map(Requirement, requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in there, f"{name} needs {requirement}"


def test_pip_takes_the_service_by_hash_wherever_it_is_installed() -> None:
    """Each command of the pages, the image and the script that names a list with hashes asks for them."""
    pages = [ROOT / "Dockerfile", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for command in re.findall(r"pip install (?:[^\n]|\\\n)*", page.read_text("utf-8")):
            if re.search(rf"requirements/(?:{'|'.join(lock.HASHED)})\.txt", command):
                assert "--require-hashes" in command, f"{page}: {command}"
    script = (ROOT / "deploy" / "install" / "install").read_text("utf-8")
    assert script.count("--require-hashes") == 2


def test_the_runtime_list_has_pyserini_and_no_model_software() -> None:
    assert not {"torch", "transformers", "peft", "accelerate"} & set(pins("runtime"))
    (pyserini,) = map(Requirement, lock.WITHOUT_DEPENDENCIES)
    assert pins("runtime")["pyserini"] in pyserini.specifier
    assert "pyserini" not in {Requirement(text).name for use in DIRECT.values() for text in use}
    everything = {name: version for use in CHAINS["dev"] for name, version in pins(use).items()}
    assert all(everything[held.name] in held.specifier for held in map(Requirement, lock.HELD))


@pytest.mark.parametrize("use", ["client", "mcp", "docs"])
def test_a_list_that_stands_alone_agrees_with_the_others(use: str) -> None:
    everything = {name: version for part in CHAINS["dev"] for name, version in pins(part).items()}
    alone = pins(use)
    assert {name: everything.get(name, version) for name, version in alone.items()} == alone
    assert not {"faiss-cpu", "orjson", "pyjnius", "tokenizers", "torch"} & set(alone)
    if use != "docs":
        assert alone.keys() <= everything.keys()
        assert set(lock.CLIENT) <= set(alone)
        assert set(lock.CLIENT) <= {Requirement(text).name for text in DIRECT["runtime"]}
        assert ("uvicorn" in alone) == (use == "mcp")


def test_a_pin_has_the_marker_of_its_requirement() -> None:
    wanted = ["a-b>=1; python_version >= '3.12'", "c>=2"]
    assert lock.marked({"a-b": "1.5", "c": "2.0"}, wanted) == {"a-b": "1.5; python_version >= '3.12'", "c": "2.0"}
    markers = {requirement.name: requirement.marker for requirement in map(Requirement, DIRECT["dev"])}
    for pin, _ in listed("dev"):
        assert pin.marker == markers.get(pin.name, pin.marker)


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


def test_an_unknown_use_and_a_missing_python_are_named(checkout: Path, tmp_path: Path) -> None:
    for arguments in ((), ("everything",), ("pipeline", "docs")):
        run = install(checkout, *arguments)
        assert run.returncode == 2
        assert "runtime|import|pipeline|loadtest|docs|release|dev" in run.stderr
    run = install(checkout, "runtime", PYTHON=str(tmp_path / "python3.10"))
    assert run.returncode == 1
    assert "no Python 3.11 or newer found" in run.stderr
    assert "PYTHON=" in run.stderr
    assert not (checkout / ".venv").exists()


def wants_a_new_environment(checkout: Path) -> bool:
    """Whether it looks for a Python to make .venv with; there is none, so it goes no further."""
    run = install(checkout, "runtime", PYTHON="/nonexistent/python3")
    return run.returncode == 1 and "no Python 3.11 or newer found" in run.stderr


def make_installed(checkout: Path, use: str = "runtime") -> None:
    """Make `checkout` look as after an installation: a real environment and the stamp of the lists."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(checkout / ".venv")], check=True)
    (checkout / ".venv" / "checkout").write_text(f"{checkout}\n")
    lists = ["pyproject.toml", "deploy/requirements/build.txt", f"deploy/requirements/{use}.txt"]
    stamp = subprocess.run(["sha256sum", *lists], cwd=checkout, check=True, capture_output=True, text=True).stdout
    (checkout / ".venv" / f"installed-{use}").write_text(stamp)


@pytest.mark.parametrize("name", ["pyproject.toml", "deploy/requirements/runtime.txt"])
def test_only_a_changed_list_is_installed(checkout: Path, name: str) -> None:
    make_installed(checkout)
    run = install(checkout, "runtime")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    run = install(checkout, "runtime")
    assert run.returncode != 0
    assert "making .venv" not in run.stdout
    assert (checkout / ".venv" / "incomplete").exists()


def test_a_failed_installation_a_moved_checkout_and_a_vanished_python_get_a_new_environment(checkout: Path) -> None:
    make_installed(checkout)
    incomplete = checkout / ".venv" / "incomplete"
    incomplete.touch()
    assert wants_a_new_environment(checkout)
    incomplete.unlink()
    moved = checkout.rename(checkout.with_name("moved"))
    assert wants_a_new_environment(moved)
    moved.rename(checkout)
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
