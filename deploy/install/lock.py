"""Pin every package that an installation needs, one list per use, from the ranges in pyproject.toml.

    python deploy/install/lock.py

`deploy/requirements/runtime.txt` pins what `lightretriever serve` needs; `tracing.txt`, `pipeline.txt`, `loadtest.txt`
and `dev.txt` pin what the extra of that name adds to the lists that `deploy/install/install` takes with it (`LISTS`).
`client.txt` and `docs.txt` each stand alone: they pin all that calling the service and building the documentation need,
on a machine that has nothing else. All come from one resolution, so they never contradict each other. pip resolves
without installing anything, for the Python that runs this script: run it with the oldest supported one (3.11), whose
needs include those of the newer ones. Index, mirrors and caches are those that pip is configured to use.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["BUILD", "CLIENT", "HELD", "WITHOUT_DEPENDENCIES", "main"]

ROOT = Path(__file__).resolve().parents[2]
LISTS = {
    "runtime": (),
    "tracing": ("runtime",),
    "pipeline": ("runtime", "tracing"),
    "loadtest": ("runtime", "tracing"),
    "dev": ("runtime", "tracing", "pipeline", "loadtest"),
}
"""By list, those it adds to. A pin may be both in pipeline.txt and in loadtest.txt: neither adds to the other."""

# What service/client and the command `search` import of the direct dependencies, beside the extra `client`.
CLIENT = ("pydantic", "rich", "typer")

# Build this project and, from its source archive, pyserini.
BUILD = ("pybind11", "setuptools")

# The service uses only pyserini's Lucene jar, so the lists leave out what pyserini itself requires. It also asks for
# Python 3.12, which the jar does not need: install with --no-deps and --ignore-requires-python.
WITHOUT_DEPENDENCIES = ("pyserini==2.4.0",)

# Held back: torch's newest release has no CPU-only build for every machine that this project is tested on.
HELD = ("torch==2.13.0",)

HEADER = """\
# {what}
# Made by deploy/install/lock.py (make lock) from pyproject.toml: change the range there, not the pin here.
"""


def normalised(name: str) -> str:
    """The name of a distribution as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(requirements: Iterable[str], constraints: Iterable[str] = ()) -> dict[str, str]:
    """Version by normalised name of all that `requirements` pull in, without local version parts such as +cpu."""
    with tempfile.TemporaryDirectory() as folder:
        constraint_file = Path(folder) / "constraints.txt"
        constraint_file.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report=-"]
        command = [sys.executable, "-m", "pip", "install", *options, f"--constraint={constraint_file}", *requirements]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    installed = json.loads(run.stdout)["install"]
    return {normalised(item["metadata"]["name"]): item["metadata"]["version"].split("+")[0] for item in installed}


def marked(pins: Mapping[str, str], requirements: Iterable[str]) -> dict[str, str]:
    """The pins, each with the marker that its requirement has, such as `; platform_machine == 'x86_64'`."""
    found = dict(pins)
    for requirement in requirements:
        wanted, semicolon, marker = requirement.partition(";")
        if semicolon:
            found[normalised(re.split(r"[<>=!~\[ ]", wanted)[0])] += f";{marker}"
    return found


def write_list(name: str, what: str, pins: Mapping[str, str], extra: Sequence[str] = ()) -> None:
    """Write `deploy/requirements/NAME.txt`, sorted."""
    lines = sorted([f"{package}=={version}" for package, version in pins.items()] + list(extra))
    path = ROOT / "deploy" / "requirements" / f"{name}.txt"
    path.write_text(HEADER.format(what=what) + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(lines)} packages")


def main() -> None:
    """Resolve all uses together, then give each list what those it adds to don't have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {"runtime": project["dependencies"], **project["optional-dependencies"]}
    uses = (*LISTS, "client", "docs")
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
    alone = resolve(direct["docs"], pinned)
    write_list("docs", "What building the documentation needs: complete, without the other lists.", alone)


if __name__ == "__main__":
    main()
