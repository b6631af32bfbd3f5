"""The house rules of CONTRIBUTING.md that a machine can check."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for package in ("artifacts", "service", "loadtest", "scripts")
    for path in sorted((ROOT / package).rglob("*.py"))
}
OWN = {"artifacts", "service", "loadtest", "scripts", "tests"}
MODEL_SOFTWARE = ("torch", "transformers", "peft", "accelerate")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: ast.AST) -> list[Function]:
    return [node for node in ast.walk(module) if isinstance(node, Function)]


def imports(module: ast.AST) -> Iterator[str]:
    """What is imported anywhere in `module`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(*packages: str) -> Iterator[str]:
    """The modules that import one of `packages` or something below, anywhere."""
    for name, module in MODULES.items():
        if any(f"{what}.".startswith(f"{package}.") for what in imports(module) for package in packages):
            yield name


def test_the_rules_see_the_packages() -> None:
    assert {"artifacts/text.py", "service/engine.py", "scripts/lock.py"} <= set(MODULES)


def test_modules_are_short() -> None:
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in MODULES}
    assert {name: length for name, length in lengths.items() if length >= 300} == {}


def test_functions_are_short() -> None:
    """Counts the lines of the body, not those of signature and docstring."""
    long = {}
    for name, module in MODULES.items():
        for function in functions(module):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > 40:
                long[f"{name}: {function.name}"] = lines
    assert long == {}


def test_public_names_are_listed() -> None:
    def listed(module: ast.Module) -> list[str]:
        for node in module.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                return list(ast.literal_eval(node.value))
        return []

    for name, module in MODULES.items():
        if name.startswith("scripts/"):
            continue
        public = [
            node.name for node in module.body if isinstance(node, Function | ast.ClassDef) and node.name[0] != "_"
        ]
        assert listed(module) or not public, f"{name} has no __all__"
        assert len(listed(module)) == len(set(listed(module))), f"{name} lists a name twice"


def test_only_the_pipeline_imports_model_software() -> None:
    allowed = ("artifacts/pipeline/", "artifacts/training/")
    assert [name for name in importers(*MODEL_SOFTWARE) if not name.startswith(allowed)] == []


def test_only_evaluation_and_training_import_the_service() -> None:
    found = [name for name in importers("service") if name.startswith("artifacts/")]
    allowed = ("artifacts/evaluat", "artifacts/training/")
    assert [name for name in found if not name.startswith(allowed)] == []


def test_the_service_imports_no_pipeline() -> None:
    offline = {*importers("lightretriever.artifacts.pipeline"), *importers("lightretriever.artifacts.training")}
    assert [name for name in offline if name.startswith("service/")] == []


def test_the_environment_is_not_read_at_import() -> None:
    reads = []
    for name, module in MODULES.items():
        inside = {id(node) for function in functions(module) for node in ast.walk(function)}
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"} and id(node) not in inside:
                reads.append(f"{name}:{node.lineno}")
    assert reads == []


def test_asserts_check_no_input() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_imported_distributions_are_declared() -> None:
    """Each as a direct dependency, or in the extra that the importing part needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needs = {
        "artifacts/pipeline/": ["pipeline"],
        "artifacts/training/": ["pipeline"],
        "artifacts/evaluat": ["pipeline"],
        "scripts/static_model.py": ["pipeline"],
        "loadtest/": ["loadtest"],
        "service/tracing.py": ["tracing"],
        "service/client/adapters/": ["client", "dev"],
        "service/client/": ["client"],
        "tests/": list(extras),
    }
    tests = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tests").rglob("*.py")}
    modules = MODULES | {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in tests.items()}
    distributions = packages_distributions()
    undeclared = []
    for name, module in modules.items():
        used = [extra for prefix, names in needs.items() if name.startswith(prefix) for extra in names]
        declared = {
            canonicalize_name(Requirement(text).name)
            for text in [*project["dependencies"], *(text for extra in used for text in extras[extra])]
        }
        for top in {what.partition(".")[0] for what in imports(module)} - OWN - set(sys.stdlib_module_names):
            if not declared & {canonicalize_name(distribution) for distribution in distributions.get(top, [top])}:
                undeclared.append(f"{name}: {top}")
    assert undeclared == []
