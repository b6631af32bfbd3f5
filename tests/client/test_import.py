"""What the client loads, and that the list client.txt is all it takes."""

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

from tests.service.process import ROOT

SERVER_SIDE = ("numpy", "faiss", "jnius", "fastapi", "starlette", "uvicorn", "tokenizers", "torch", "typer", "rich")

LOADED = f"""
import sys, threading
import lightretriever.service.client
loaded = [name for name in {SERVER_SIDE} if name in sys.modules]
loaded += [name for name in sys.modules if name.startswith("lightretriever.service.client.adapters")]
assert threading.active_count() == 1, threading.enumerate()
sys.exit(", ".join(loaded) or 0)
"""

# Only what the list names may be imported, beside Python's own and this project.
ALONE = """
import sys
allowed = set(sys.argv.pop(1).split(","))
class Gate:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in allowed or top in sys.stdlib_module_names or top.startswith("_sysconfigdata"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gate())
from lightretriever.service.terminal import main
main()
"""

# Without one of the packages.
WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from lightretriever.service.cli import main
main()
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def allowed(name: str = "client") -> set[str]:
    lines = (ROOT / "deploy" / "requirements" / f"{name}.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    modules = {
        module
        for module, distributions in packages_distributions().items()
        if pinned & {canonicalize_name(distribution) for distribution in distributions}
    }
    return {*modules, "lightretriever"}


def test_the_import_loads_no_part_of_the_server_and_starts_nothing() -> None:
    done = run(LOADED)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pinned_list_is_all_that_a_search_in_the_terminal_takes(url: str) -> None:
    done = run(ALONE, ",".join(allowed()), "play music", "--url", url, "--k", "2", "--timeout-s", "120")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 hits of " in done.stdout


@pytest.mark.parametrize(
    ("package", "arguments", "needed", "extra"),
    [("httpx2", ["search", "play music"], "httpx2", "client"), ("mcp", ["mcp"], "mcp.server", "mcp")],
)
def test_a_missing_package_is_named_with_the_extra(package: str, arguments: list[str], needed: str, extra: str) -> None:
    done = run(WITHOUT, package, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"needs {needed}, which is not installed. Install the extra" in done.stderr
    assert f"pip install 'lightretriever-search[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert run(WITHOUT, package, "--help").returncode == 0  # all other commands go on
