"""Builds the container image from the committed Dockerfile where no container engine runs: as root on Debian.

buildah builds it over small Debians with Python, which mmdebstrap makes of Debian's packages. pip collects the packages
outside of the build, with the index, mirror and cache that it is configured for, so none of these gets into the image.
Everything lies in build/image, where a second run finds the bases and the packages again.
"""

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
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "image"
LISTS = [ROOT / "deploy" / "requirements" / f"{name}.txt" for name in ("build", "runtime", "tracing", "cluster")]
SUITE = "bookworm"
PYTHON = (3, 11)  # that of SUITE; packages are collected for it
# C++'s library is for NumPy, Faiss and Java.
PACKAGES = {"base": "python3,libstdc++6", "build": "python3-venv"}
MAKE_BASE = (
    "mmdebstrap",
    "--quiet",
    "--variant=essential",
    *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "info", "locale", "man")),
    # The image keeps no trace of the mirror and the machine that it was made with.
    '--customize-hook=rm -f "$1"/etc/apt/sources.list "$1"/etc/resolv.conf "$1"/etc/hostname',
)
BASE = f"{SUITE}-{hashlib.sha256(repr((MAKE_BASE, PACKAGES)).encode()).hexdigest()[:16]}"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
TAG = f"localhost/lightretriever-search:{VERSION}"


class Built(NamedTuple):
    """A built image: the megabytes that each step of deploy/image/slim.py saved, its file system, and what it says of
    itself in Docker's terms: User, Env, Entrypoint, Healthcheck, Labels and so on."""

    removed_mb: dict[str, float]
    root: Path
    config: dict[str, Any]


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


def run(*command: str | Path) -> None:
    """Run a command, which must succeed; its output goes to stderr."""
    subprocess.run(command, check=True, stdout=sys.stderr)


def output(command: Sequence[str]) -> str:
    """What a command prints on stdout, without the end of the line."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def buildah(*arguments: str | Path) -> list[str]:
    """The command line of buildah, with its storage in build/image: no kernel module and no daemon is needed."""
    where = [f"--root={WORK / 'storage'}", f"--runroot={WORK / 'run'}", "--storage-driver=vfs"]
    return ["buildah", *where, *map(str, arguments)]


def debian_sources() -> list[str]:
    """The machine's own sources of SUITE, as lines for sources.list; empty where it has none."""
    form = "deb $(REPO_URI) $(CODENAME) $(COMPONENT)"
    listed = output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).splitlines()
    wanted = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    return sorted({line for line in listed if line.split()[2] in wanted and line.endswith(" main")})


def make_base(use: str) -> str:
    """Put a small Debian with the packages of a use into the storage, unless it is there, and give its tag."""
    tag = f"localhost/lightretriever-{use}:{BASE}"
    if subprocess.run(buildah("inspect", "--type=image", tag), capture_output=True).returncode == 0:
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


def collect_packages() -> Path:
    """The folder with every package of the lists, complete: wheels, and the source archives that have none."""
    folder = WORK / f"packages-{hashlib.sha256(b''.join(path.read_bytes() for path in LISTS)).hexdigest()[:16]}"
    if not folder.exists():
        for old in WORK.glob("packages-*"):
            shutil.rmtree(old)
        scratch = folder.with_suffix(".part")
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        options = ["--ignore-requires-python", "--no-build-isolation", f"--dest={scratch}"]
        run(*pip, *options, *(f"--requirement={path}" for path in LISTS))
        scratch.replace(folder)
    return folder


@contextmanager
def build() -> Iterator[Built]:
    """Build the image, and mount its file system in a container that is removed at the end."""
    WORK.mkdir(parents=True, exist_ok=True)
    pip_config = WORK / "pip.conf"
    pip_config.write_text("[global]\nno-index = true\nfind-links = /packages\n", encoding="ascii")
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    arguments = {"BASE": make_base("base"), "BUILD_BASE": make_base("build"), "VERSION": VERSION, "REVISION": revision}
    command = [
        *buildah("bud", "--isolation=chroot", "--format=docker", "--layers=false", "--force-rm", f"--tag={TAG}"),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        f"--secret=id=pip.conf,src={pip_config}",
        f"--volume={collect_packages()}:/packages:ro",
        str(ROOT),
    ]
    printed = output(command)
    print(printed, file=sys.stderr)
    run(*buildah("rmi", "--prune"))  # the image that had the tag before
    steps = re.findall(r"^ *([0-9.]+) MB  (.+)$", printed, flags=re.MULTILINE)
    config = json.loads(output(buildah("inspect", "--type=image", TAG)))["Docker"]["config"]
    container = output(buildah("from", "--pull-never", TAG))
    try:
        root = Path(output(buildah("mount", container)))
        yield Built({what: float(size) for size, what in steps}, root, config)
    finally:
        run(*buildah("rm", container))
