"""Compile the Java sources into the class files that are committed beside them, or check that the two belong together.

    python -m lightretriever.artifacts.sparse.compile            compile, and record the checksums of sources and classes
    python -m lightretriever.artifacts.sparse.compile --check    compare with the committed files; needs a javac as well

The checksums (`classes/SHA256SUMS`, readable by sha256sum) show without a compiler that a source was changed and not
compiled.
"""

import argparse
import hashlib
import os
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

_OPTIONS: Final = (
    "--release",
    "11",
    "-proc:none",
    "-g:source,lines",
    "-Werror",
    "-Xlint:all,-path,-classfile,-processing",
)
_RECOMPILE: Final = "Run `python -m lightretriever.artifacts.sparse.compile` and commit the result."


def compile_classes(target: Path) -> None:
    """Compile all sources into the directory `target`. Raises JavaError without a javac, or with what javac says."""
    sources = [str(path) for path in sorted(FOLDER.glob("java/**/*.java"))]
    command = [str(_javac()), *_OPTIONS, "-cp", str(anserini_jar()), "-d", str(target), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JavaError(f"javac failed: {(done.stdout + done.stderr).strip()}", remedy="Mend the source.")


def check_sums() -> None:
    """Compare sources and classes with the recorded checksums. Raises JavaError that names a file that differs."""
    recorded = SUMS.read_text("ascii") if SUMS.is_file() else ""
    then, now = _parsed(recorded), _parsed(_sums())
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            state = "is not recorded" if name not in then else "is missing" if name not in now else "was changed"
            raise JavaError(f"{FOLDER / name} {state}; {SUMS} was written from other files.", remedy=_RECOMPILE)


def check_classes() -> None:
    """Compile afresh and compare with the committed classes. Raises JavaError that names a file that differs."""
    with tempfile.TemporaryDirectory() as folder:
        compile_classes(Path(folder))
        fresh = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).glob("**/*.class")}
    committed = {str(path.relative_to(CLASSES)): path.read_bytes() for path in CLASSES.glob("**/*.class")}
    for name in sorted(fresh.keys() | committed.keys()):
        if fresh.get(name) != committed.get(name):
            state = "is missing" if name not in committed else "has no source" if name not in fresh else "differs"
            raise JavaError(f"{CLASSES / name} {state}: the sources compile to something else.", remedy=_RECOMPILE)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m artifacts.lucene.compile", description=(__doc__ or "").split("\n")[0]
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
    SUMS.write_text(_sums(), "ascii")


def _javac() -> Path:
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which("javac") or shutil.which("javac", path=str(Path(home, "bin")) if home else "")
    if found is None:
        raise JavaError(
            "There is no javac on PATH nor in JAVA_HOME.",
            remedy="Install a JDK of version 11 or newer (Debian: default-jdk-headless).",
        )
    return Path(found)


def _sums() -> str:
    files = sorted([*FOLDER.glob("java/**/*.java"), *FOLDER.glob("classes/**/*.class")])
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(FOLDER).as_posix()}\n" for path in files
    )


def _parsed(sums: str) -> dict[str, str]:
    return {name: digest for digest, _, name in (line.partition("  ") for line in sums.splitlines())}


if __name__ == "__main__":
    sys.exit(main())
