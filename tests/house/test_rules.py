"""The house rules of CONTRIBUTING.md that a machine can check."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lightretriever.service.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("artifacts", "service", "loadtest", "demo", "deploy", "research")
OWN = {"lightretriever", "demo", "deploy", "research", "tests"}
BROUGHT = {"mteb"}
"""What only users have who call our side of its interface."""
VARIABLES_OF_OTHERS = {
    *("_JAVA_OPTIONS", "OPENSEARCH_HOME", "PROMETHEUS_MULTIPROC_DIR", "XDG_CACHE_HOME"),
    *("LOCAL_WORLD_SIZE", "RANK", "TORCHELASTIC_ERROR_FILE", "WORLD_SIZE"),
}
"""Variables of the environment that belong to other programs."""

Modules = dict[str, ast.Module]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """The modules of all folders but tests/, by their path. Half a million objects, so they go when this file ends."""
    return parsed(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))


def parsed(paths: Iterable[Path]) -> Modules:
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def imports(module: ast.AST) -> Iterator[str]:
    """What is imported anywhere in `module`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_architecture_lists_every_room_and_layer() -> None:
    """The rooms of docs/architecture.md are the folders, and in their order the layers of import-linter."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^### `([a-z_/]+)`$", page, flags=re.MULTILINE)
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("artifacts", "service")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    assert set(rooms) == folders | {"loadtest", "research"}
    contract, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [name.removeprefix("lightretriever.") for line in contract["layers"] for name in line.split(" : ")]
    assert [layer.replace(".", "/") for layer in layers if layer.replace(".", "/") in rooms] == rooms


def test_the_package_leads_to_its_rooms() -> None:
    """So that editors, mypy, setuptools and pytest find a module where its import says."""
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "lightretriever").iterdir() if path.is_symlink()}
    assert links == {room: f"../{room}" for room in ("artifacts", "loadtest", "service")}


def test_imports_keep_the_contracts_of_the_rooms() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_names_with_an_underscore_stay_in_their_module(modules: Modules) -> None:
    taken = [
        f"{name}: {alias.name}"
        for name, module in modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert taken == []


def test_the_environment_is_not_read_at_import(modules: Modules) -> None:
    reads = []
    for name, module in modules.items():
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {id(node) for function in functions for node in ast.walk(function)}
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"} and id(node) not in inside:
                reads.append(f"{name}:{node.lineno}")
    assert reads == []


def test_imported_distributions_are_declared(modules: Modules) -> None:
    """Each as a direct dependency, or in the extra that the importing part needs."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, build = content["project"], content["build-system"]["requires"]
    groups = {**project["optional-dependencies"], "build": build, "": project["dependencies"]}
    declared = {group: {canonicalize_name(Requirement(text).name) for text in texts} for group, texts in groups.items()}
    needs = {
        "artifacts/corpus/tables.py": ["import"],
        "artifacts/corpus/passages.py": ["pipeline"],
        "artifacts/cluster/": ["cluster"],
        "artifacts/pipeline/on_ray.py": ["ray"],
        "artifacts/pipeline/": ["pipeline"],
        "artifacts/training/": ["pipeline"],
        "artifacts/evaluation/": ["pipeline"],
        "loadtest/": ["loadtest"],
        "research/": ["loadtest", "pipeline"],
        "service/http/tracing.py": ["tracing"],
        "service/client/adapters/": ["client", "dev"],
        "service/client/": ["client"],
        "tests/": list(groups),
    }
    tests = parsed((ROOT / "tests").rglob("*.py"))
    distributions = packages_distributions()
    undeclared = []
    for name, module in (modules | tests).items():
        used = ["", *(extra for prefix, names in needs.items() if name.startswith(prefix) for extra in names)]
        allowed = set().union(*(declared[group] for group in used))
        for top in {what.partition(".")[0] for what in imports(module)} - OWN - BROUGHT - set(sys.stdlib_module_names):
            if not allowed & {canonicalize_name(distribution) for distribution in distributions.get(top, [top])}:
                undeclared.append(f"{name}: {top}")
    assert undeclared == []


def test_variables_of_the_environment_have_one_prefix() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    read = r"(?:environ\.get\(|environ\[|getenv\(|envvar=)f?\"([A-Z_]+)"
    named = {name for path in files for name in re.findall(read, path.read_text("utf-8"))}
    assert {"LIGHTRETRIEVER_URL", "_JAVA_OPTIONS"} <= named
    assert {name for name in named if not name.startswith(ENV_PREFIX)} <= VARIABLES_OF_OTHERS


def test_documentation_and_deployment_name_variables_that_exist() -> None:
    known = {*Settings.model_fields, "config", "url", "api_key"} | {"port", "service_host"}  # these are Kubernetes' own
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.*"), ROOT / "Dockerfile", ROOT / "README.md"]
    named = {
        (path.name, name)
        for path in files
        if path.suffix != ".pyc"
        for name in re.findall(rf"\b{ENV_PREFIX}([A-Z_]*[A-Z])\b", path.read_text("utf-8"))
    }
    assert {name for _, name in named} >= {"OPENSEARCH_PASSWORD", "API_KEY", "LOG_LEVEL"}
    assert [one for one in named if one[1].lower() not in known] == []
