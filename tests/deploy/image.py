"""The container image, built from the committed Dockerfile and run by podman, as root on Debian.

Its bases are small Debians with Python, which mmdebstrap makes of Debian's packages. pip collects the packages outside
of the build, with the index, mirror and cache that it is configured for, so none of these gets into the image.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "image"
LISTS = [ROOT / "deploy" / "requirements" / f"{name}.txt" for name in ("build", "runtime", "tracing", "cluster")]
SUITE = "bookworm"
PYTHON = (3, 11)  # that of SUITE; packages are collected for it
# C++'s library is for NumPy, Faiss and Java.
PACKAGES = {"base": "python3,libstdc++6", "build": "python3-venv,libstdc++6"}
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
ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, {"content-type": "application/json"})
try:
    answer = urllib.request.urlopen(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""
TAG = f"localhost/lightretriever-search:{VERSION}"


class Built(NamedTuple):
    """A built image: the megabytes that each step of deploy/image/slim.py saved, its file system, and what it says of
    itself in Docker's terms: User, Env, Entrypoint, Labels and so on."""

    removed_mb: dict[str, float]
    root: Path
    config: dict[str, Any]


class Container:
    """A running container of the image, read-only, without rights and without a network but 127.0.0.1. `arguments`
    stand in the place of the image's Cmd, `options` are podman's. It is removed at the end."""

    def __init__(self, bundle: Path | None, *arguments: str, options: Sequence[str] = ()) -> None:
        self.name = f"lightretriever-{uuid4().hex}"
        walls = ["--read-only", "--read-only-tmpfs=false", "--network=none", "--cap-drop=all", "--pull=never"]
        walls += ["--security-opt=no-new-privileges", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
        mounted = [] if bundle is None else [f"--volume={bundle}:/bundle:ro"]
        command = podman("run", "--rm", f"--name={self.name}", *walls, *mounted, *options, TAG, *arguments)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @property
    def ready_line(self) -> str:
        """The first line of stdout, as soon as it is there."""
        return self.process.stdout.readline() if self.process.stdout else ""

    def python(self, code: str, *arguments: str) -> str:
        """Run Python's code inside, as the container's user; return what it prints, on stdout and stderr."""
        command = podman("exec", self.name, "python3", "-I", "-c", code, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Send a request to the service inside; POST where there is a body. Gives status and text."""
        text = "" if body is None else json.dumps(body)
        status, _, content = self.python(ASK, f"http://127.0.0.1:8080{path}", text).partition(" ")
        return int(status), content.rstrip("\n")

    def wait(self) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        output, errors = self.process.communicate(timeout=120)
        return self.process.returncode, output, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(podman("rm", "--force", "--ignore", self.name), capture_output=True, check=True)
        self.process.communicate()


def missing() -> list[str]:
    """What this machine lacks to build the image, in words; empty where it can."""
    reasons = [f"no {tool}" for tool in ("podman", "runc", "mmdebstrap") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        reasons.append("not root")
    if sys.version_info[:2] != PYTHON:
        reasons.append(f"Python {platform.python_version()}, and the base has {PYTHON[0]}.{PYTHON[1]}")
    return reasons


def run(*command: str | Path) -> None:
    """Run a command, which must succeed; its output goes to stderr."""
    subprocess.run(command, check=True, stdout=sys.stderr)


def output(command: Sequence[str]) -> str:
    """What a command prints on stdout, without the end of the line."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def podman(*arguments: str | Path) -> list[str]:
    """The command line of podman, with its storage in build/image: no kernel module and no daemon is needed."""
    where = [f"--root={WORK / 'storage'}", f"--runroot={WORK / 'run'}", "--storage-driver=vfs"]
    return ["podman", *where, "--cgroup-manager=cgroupfs", "--runtime=runc", "--log-level=fatal", *map(str, arguments)]


def debian_sources() -> list[str]:
    """The machine's own sources of SUITE, as lines for sources.list; empty where it has none."""
    form = "deb $(REPO_URI) $(CODENAME) $(COMPONENT)"
    listed = output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).splitlines()
    wanted = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    return sorted({line for line in listed if line.split()[2] in wanted and line.endswith(" main")})


def make_base(use: str) -> str:
    """Put a small Debian with the packages of a use into the storage, unless it is there, and give its tag."""
    tag = f"localhost/lightretriever-{use}:{BASE}"
    if subprocess.run(podman("image", "exists", tag)).returncode == 0:
        return tag
    archive = WORK / f"{use}-{BASE}.tar"
    if not archive.exists():
        scratch = archive.with_suffix(".part.tar")
        run(*MAKE_BASE, f"--include={PACKAGES[use]}", SUITE, scratch, *debian_sources())
        scratch.replace(archive)
    run(*podman("import", "--quiet", archive, tag))
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
    """Build the image, and mount its file system until the end."""
    WORK.mkdir(parents=True, exist_ok=True)
    pip_config = WORK / "pip.conf"
    pip_config.write_text("[global]\nno-index = true\nfind-links = /packages\n", encoding="ascii")
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    arguments = {"BASE": make_base("base"), "BUILD_BASE": make_base("build"), "VERSION": VERSION, "REVISION": revision}
    command = [
        *podman("build", "--isolation=chroot", "--format=docker", "--layers=false", "--force-rm", f"--tag={TAG}"),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        f"--secret=id=pip.conf,src={pip_config}",
        f"--volume={collect_packages()}:/packages:ro",
        str(ROOT),
    ]
    printed = output(command)
    print(printed, file=sys.stderr)
    run(*podman("image", "prune", "--force"))  # the image that had the tag before
    steps = re.findall(r"^ *([0-9.]+) MB  (.+)$", printed, flags=re.MULTILINE)
    (about,) = json.loads(output(podman("image", "inspect", TAG)))
    try:
        root = Path(output(podman("image", "mount", TAG)))
        yield Built({what: float(size) for size, what in steps}, root, about["Config"])
    finally:
        run(*podman("image", "unmount", TAG))
