"""Compile the Java sources into the class files that are committed beside them, or check that the two belong together.

    python -m lightretriever.artifacts.sparse.compile            compile; record checksums and the compiler's version
    python -m lightretriever.artifacts.sparse.compile --check    compare with the committed files, and compile

The compiler is Eclipse's, `ecj`: it reads the class files of Lucene, which are Java 21's, under an older Java too. The
checksums (`classes/SHA256SUMS`, readable by sha256sum) show a source that was changed and not compiled. The bytes of
the classes are compared only under the recorded version of ecj, because another one may write others.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from lightretriever.artifacts.errors import JavaError, LightRetrieverError
from lightretriever.artifacts.sparse.jvm import anserini_jar

__all__ = ["check_classes", "check_sums", "compile_classes", "main"]

FOLDER: Final = Path(__file__).parent
CLASSES: Final = FOLDER / "classes"
SUMS: Final = CLASSES / "SHA256SUMS"

_OPTIONS: Final = ("--release", "17", "-proc:none", "-failOnWarning", "-g:source,lines")
_RECOMPILE: Final = "Run `python -m lightretriever.artifacts.sparse.compile` and commit the result."
_INSTALL: Final = "Install Eclipse's compiler for Java (Debian and Ubuntu: `apt-get install ecj`)."


def compile_classes(target: Path) -> None:
    """Compile all sources into the directory `target`. Raises JavaError without ecj, or with what ecj says."""
    sources = [str(path) for path in sorted(FOLDER.glob("java/**/*.java"))]
    _ecj(*_OPTIONS, "-cp", str(anserini_jar()), "-d", str(target), *sources)


def check_sums() -> None:
    """Compare sources and classes with the recorded checksums. Raises JavaError that names a file that differs."""
    then, now = _parsed(_recorded()), _parsed(_sums())
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            state = "is not recorded" if name not in then else "is missing" if name not in now else "was changed"
            raise JavaError(f"{FOLDER / name} {state}; {SUMS} was written from other files.", remedy=_RECOMPILE)


def check_classes() -> None:
    """Compile afresh, and compare with the committed classes if the compiler is the recorded one.

    Raises JavaError that names a file that differs.
    """
    with tempfile.TemporaryDirectory() as folder:
        compile_classes(Path(folder))
        fresh = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).glob("**/*.class")}
    if _compiler() not in _recorded().splitlines():
        return
    committed = {str(path.relative_to(CLASSES)): path.read_bytes() for path in CLASSES.glob("**/*.class")}
    for name in sorted(fresh.keys() | committed.keys()):
        if fresh.get(name) != committed.get(name):
            state = "is missing" if name not in committed else "has no source" if name not in fresh else "differs"
            raise JavaError(f"{CLASSES / name} {state}: the sources compile to something else.", remedy=_RECOMPILE)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m lightretriever.artifacts.sparse.compile", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="compare with the committed files and change nothing")
    try:
        if parser.parse_args(arguments).check:
            check_sums()
            check_classes()
        else:
            _replace_classes()
    except LightRetrieverError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _replace_classes() -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        compiled = Path(folder, "classes")
        compile_classes(compiled)
        shutil.rmtree(CLASSES, ignore_errors=True)
        compiled.rename(CLASSES)
    SUMS.write_text(f"{_compiler()}\n{_sums()}", "ascii")


def _ecj(*arguments: str) -> str:
    """Run ecj; returns what it prints."""
    found = shutil.which("ecj")
    if found is None:
        raise JavaError("There is no ecj on PATH.", remedy=_INSTALL)
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    printed = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        raise JavaError(f"ecj failed: {printed}.", remedy="Mend the source.")
    return printed


def _compiler() -> str:
    """The installed compiler, as a comment of SHA256SUMS names it."""
    printed = _ecj("-version")
    version = re.search(r"\d+\.\d+\.\d+", printed)
    if version is None:
        raise JavaError(f"ecj names no version: {printed!r}.", remedy=_INSTALL)
    return f"# ecj {version[0]}"


def _recorded() -> str:
    return SUMS.read_text("ascii") if SUMS.is_file() else ""


def _sums() -> str:
    files = sorted([*FOLDER.glob("java/**/*.java"), *FOLDER.glob("classes/**/*.class")])
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(FOLDER).as_posix()}\n" for path in files
    )


def _parsed(sums: str) -> dict[str, str]:
    lines = (line.partition("  ") for line in sums.splitlines() if not line.startswith("#"))
    return {name: digest for digest, _, name in lines}


if __name__ == "__main__":
    sys.exit(main())
