"""Build the two wheels of a release, which need nothing but the packages of the index.

    .venv/bin/python deploy/wheel/build.py            (make wheel)

The program's wheel has the token table for builds, and one jar of our Java classes and of Lucene, cut from the Anserini
jar of the installed pyserini. The demo's wheel has the demo bundle. Both, for any Python 3 and any system, are written
to dist/.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

from lightretriever.artifacts.sparse.jvm import CLASSES, JAR, anserini_jar

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
DEMO: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "lightretriever-search-demo"
version = "{version}"
description = "The demo bundle of LightRetriever Search: Debian's programs by what they do"
requires-python = ">=3.11"
dependencies = ["lightretriever-search=={version}"]
license-files = ["NOTICE"]

[tool.setuptools]
packages = ["lightretriever.demo"]

[tool.setuptools.package-data]
"lightretriever.demo" = ["bundle.tar.xz"]
"""
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
        copy = Path(scratch)
        for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        for apart in ("java", "classes"):  # the jar has them
            shutil.rmtree(copy / PACKAGE / "artifacts" / "sparse" / apart)
        write_jar(copy / PACKAGE / "artifacts" / "sparse" / JAR.name)
        return _built(copy, folder)


def build_demo_wheel(folder: Path) -> Path:
    """Write the wheel of the demo bundle, which belongs to one version of the program, and return its path."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        (copy / "pyproject.toml").write_text(DEMO.format(version=version), encoding="utf-8")
        shutil.copy(ROOT / "NOTICE", copy)
        data = copy / PACKAGE / "demo"
        data.mkdir(parents=True)
        shutil.copy(ROOT / "demo" / "bundle.tar.xz", data)
        return _built(copy, folder)


def _built(source: Path, folder: Path) -> Path:
    """Build the wheel of a folder of sources, without an index."""
    made = source / "made"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(made), str(source)], check=True)
    (wheel,) = made.glob("*.whl")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheel, folder))


def main() -> None:
    """Build, and print the paths of the wheels."""
    parser = argparse.ArgumentParser(description="Build the wheels of the program and of its demo.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder to write them to (dist)")
    parser.add_argument("--no-demo", action="store_true", help="leave the demo's wheel out")
    settings = parser.parse_args()
    builders = (build_wheel,) if settings.no_demo else (build_wheel, build_demo_wheel)
    for wheel in (build(settings.output) for build in builders):
        print(f"{wheel}: {wheel.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
