"""Build a wheel that needs nothing but the packages of the index: `pip install` it, then `lightretriever demo`.

    .venv/bin/python deploy/wheel/build.py            (make wheel)

In a copy of the checkout, what an installation can't fetch is put beside the code: the demo bundle, and one jar of our
Java classes and of Lucene, cut from the Anserini jar of the installed pyserini. The wheel, for any Python 3 and any
system, is written to dist/.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from lightretriever.artifacts.sparse.jvm import CLASSES, JAR, anserini_jar

__all__ = ["build_wheel", "main", "write_jar"]

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "lightretriever"
LUCENE: Final = "org/apache/lucene/"
LEFT_OUT: Final = tuple(
    LUCENE + part
    for part in (
        "analysis/ja/",  # with dictionaries of megabytes; words of Chinese, Japanese and Korean are pairs of signs
        "analysis/ko/",
        "backward_codecs/",
        "facet/",
        "queries/",
        "queryparser/",
        "sandbox/",
    )
)
KEPT: Final = (
    LUCENE,
    "io/anserini/analysis/",  # its analyzer of English
    "org/tartarus/snowball/",  # the stemmers of its analyzers
    "META-INF/services/org.apache.lucene.",
    "META-INF/MANIFEST.MF",
    "META-INF/LICENSE",
    "META-INF/NOTICE",
)
VERSIONED: Final = "META-INF/versions/"
SERVICES: Final = "META-INF/services/"


def write_jar(target: Path) -> None:
    """Write our classes, and what the service uses of Lucene, to one jar. JavaError without the Anserini jar."""
    with zipfile.ZipFile(anserini_jar()) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        kept = [member for member in old.infolist() if not member.is_dir() and _is_kept(member.filename)]
        there = {member.filename for member in kept}
        for member in kept:
            content = old.read(member)
            if member.filename.startswith(SERVICES):  # names of classes, of which some are left out
                lines = content.decode().splitlines()
                found = [line for line in lines if f"{line.strip().replace('.', '/')}.class" in there]
                content = "".join(f"{line}\n" for line in found).encode()
            new.writestr(member, content)
        for path in sorted(CLASSES.rglob("*.class")):
            new.write(path, path.relative_to(CLASSES).as_posix())


def _is_kept(name: str) -> bool:
    if name.startswith(VERSIONED):  # Lucene's code for newer Java
        name = name.removeprefix(VERSIONED).partition("/")[2]
    return name.startswith(KEPT) and not name.startswith(LEFT_OUT)


def build_wheel(folder: Path) -> Path:
    """Write the wheel to a folder, and return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        copy, made = Path(scratch) / "source", Path(scratch) / "made"
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        for apart in ("java", "classes"):  # the jar has them
            shutil.rmtree(copy / PACKAGE / "artifacts" / "sparse" / apart)
        write_jar(copy / PACKAGE / "artifacts" / "sparse" / JAR.name)
        demo = copy / PACKAGE / "demo"
        demo.mkdir()
        for name in ("bundle.tar.xz", "rules.yaml"):
            shutil.copy(ROOT / "demo" / name, demo)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*pip, "--wheel-dir", str(made), str(copy)], check=True)
        (wheel,) = made.glob("lightretriever_search-*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))


def main() -> None:
    """Build, and print the path of the wheel."""
    parser = argparse.ArgumentParser(description="Build a wheel that works by itself.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder to write it to (dist)")
    wheel = build_wheel(parser.parse_args().output)
    print(f"{wheel}: {wheel.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
