"""Pin every package that an installation needs, one list per use, from the ranges in pyproject.toml.

    python deploy/install/lock.py

`deploy/requirements/runtime.txt` pins what `lightretriever serve` needs; `tracing.txt`, `cluster.txt`, `import.txt`,
`pipeline.txt`, `loadtest.txt`, `dev.txt` and `ray.txt` pin what the extra of that name adds
to the lists that `deploy/install/install` takes with it (`LISTS`). `client.txt`, `mcp.txt` and `docs.txt` each stand
alone: they pin all that calling the service, giving it to language models, and building the documentation need, on a
machine that has nothing else. All come from one resolution, so they never contradict each other. pip resolves without
installing anything, for the Python that runs this script: run it with the oldest supported one (3.11), whose needs
include those of the newer ones. Index, mirrors and caches are those that pip is configured to use.

What the service, its clients and the import are installed from (`HASHED`) has the hashes of all files that pip may take
on the machines and Pythons below; `pip install --require-hashes` refuses any other. The other lists have none: which
build of torch is right depends on the hardware.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LISTS = {
    "runtime": (),
    "tracing": ("runtime",),
    "cluster": ("runtime", "tracing"),
    "import": ("runtime",),
    "pipeline": ("runtime", "tracing"),
    "release": ("runtime",),
    "loadtest": ("runtime", "tracing"),
    "dev": ("runtime", "tracing", "cluster", "pipeline", "loadtest"),
    "ray": ("runtime", "tracing", "pipeline"),
}
"""By list, those it adds to. A pin may be in several of cluster, pipeline and loadtest: none adds to another."""

# What service/client and its commands import of the direct dependencies, beside the extras.
CLIENT = ("pydantic", "typer")

# Build this project and, from its source archive, pyserini.
BUILD = ("setuptools",)

# The service uses only pyserini's Lucene jar, so the lists leave out what pyserini itself requires. It also asks for
# Python 3.12, which the jar does not need: install with --no-deps and --ignore-requires-python.
WITHOUT_DEPENDENCIES = ("pyserini==2.4.0",)

# Held back: torch's newest release has no CPU-only build for every machine that this project is tested on.
HELD = ("torch==2.13.0",)

HASHED = ("build", "runtime", "tracing", "cluster", "import", "client", "mcp")
"""The lists with hashes."""

MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

HEADER = """\
# {what}
# Made by deploy/install/lock.py (make lock) from pyproject.toml: change the range there, not the pin here.
"""


def normalised(name: str) -> str:
    """The name of a distribution as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def report(requirements: Iterable[str], *options: str) -> list[dict[str, Any]]:
    """What pip would install for `requirements`: one mapping for each distribution, that of `pip install --report`."""
    quiet = ["--quiet", "--dry-run", "--ignore-installed", "--report=-"]
    command = [sys.executable, "-m", "pip", "install", *quiet, *options, *requirements]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = json.loads(run.stdout)["install"]
    return found


def resolve(requirements: Iterable[str], constraints: Iterable[str] = ()) -> dict[str, str]:
    """Version by normalised name of all that `requirements` pull in, without local version parts such as +cpu."""
    with tempfile.TemporaryDirectory() as folder:
        constraint_file = Path(folder) / "constraints.txt"
        constraint_file.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        installed = report(requirements, "--only-binary=:all:", f"--constraint={constraint_file}")
    return {normalised(item["metadata"]["name"]): item["metadata"]["version"].split("+")[0] for item in installed}


def hashes(pins: Iterable[str]) -> dict[str, set[str]]:
    """SHA-256 by normalised name of the files that pip takes for `pins`.

    Those are the wheels for each of the machines and Pythons, and the source archives of `WITHOUT_DEPENDENCIES`.
    """
    pins = list(pins)
    wheels = [pin for pin in pins if pin not in WITHOUT_DEPENDENCIES]
    sources = [pin for pin in pins if pin in WITHOUT_DEPENDENCIES]
    taken: list[dict[str, Any]] = []
    if sources:
        from_source = ("--no-deps", "--no-binary=:all:", "--no-build-isolation", "--ignore-requires-python")
        taken += report(sources, *from_source)
    for machine in MACHINES:
        tags = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 41)]
        tags += [f"{tag}_{machine}" for tag in ("manylinux1", "manylinux2010", "manylinux2014", "linux")]
        platforms = [f"--platform={tag}" for tag in tags]
        for python in PYTHONS:
            options = ("--no-deps", "--only-binary=:all:", f"--python-version={python}", "--target=unused", *platforms)
            taken += report(wheels, *options)
    found: dict[str, set[str]] = {}
    for item in taken:
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        found.setdefault(normalised(item["metadata"]["name"]), set()).add(digest)
    return found


def marked(pins: Mapping[str, str], requirements: Iterable[str]) -> dict[str, str]:
    """The pins, each with the marker that its requirement has, such as `; platform_machine == 'x86_64'`."""
    found = dict(pins)
    for requirement in requirements:
        wanted, semicolon, marker = requirement.partition(";")
        if semicolon:
            found[normalised(re.split(r"[<>=!~\[ ]", wanted)[0])] += f";{marker}"
    return found


def write_list(name: str, what: str, pins: Mapping[str, str], extra: Sequence[str] = ()) -> None:
    """Write `deploy/requirements/NAME.txt`, sorted, with hashes if it is one of `HASHED`."""
    lines = sorted([f"{package}=={version}" for package, version in pins.items()] + list(extra))
    if name in HASHED:
        known = hashes(lines)
        lines = [
            " \\\n    ".join(
                [line, *(f"--hash=sha256:{digest}" for digest in sorted(known[normalised(line.split("==")[0])]))]
            )
            for line in lines
        ]
    path = ROOT / "deploy" / "requirements" / f"{name}.txt"
    path.write_text(HEADER.format(what=what) + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(lines)} packages")


def main() -> None:
    """Resolve all uses together, then give each list what those it adds to don't have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {"runtime": project["dependencies"], **project["optional-dependencies"]}
    uses = (*LISTS, "client", "mcp", "docs")
    everything = resolve([*BUILD, *(requirement for use in uses for requirement in direct[use])], HELD)
    pinned = [f"{name}=={version}" for name, version in everything.items()]
    lists = {"build": resolve(BUILD, pinned)}
    write_list("build", "Builds this project and pyserini; installed first.", lists["build"])
    for use, others in LISTS.items():
        needed = resolve([*direct["runtime"], *direct[use]], pinned)
        there = {name for other in ("build", *others) for name in lists[other]}
        added = {name: version for name, version in needed.items() if name not in there}
        lists[use] = added
        what = "What `lightretriever serve` needs." if use == "runtime" else f"What the extra `{use}` adds."
        write_list(use, what, marked(added, direct[use]), WITHOUT_DEPENDENCIES if use == "runtime" else ())
    alone = resolve([*direct["client"], *CLIENT], pinned)
    write_list("client", "What calling the service needs: complete, without the other lists.", alone)
    alone = resolve([*direct["mcp"], *CLIENT], pinned)
    write_list("mcp", "What the tools for language models need: complete, without the other lists.", alone)
    alone = resolve(direct["docs"], pinned)
    write_list("docs", "What building the documentation needs: complete, without the other lists.", alone)


if __name__ == "__main__":
    main()
