"""Choose the demo's documents: the programs among Debian's packages, in BEIR layout.

    python demo/demo_corpus.py DEBIAN_PACKAGE_DESCRIPTIONS OUTPUT.jsonl.gz [--packages PACKAGES]

Left out are packages that nobody searches for by what they do: libraries and language bindings, development files,
documentation, data, fonts, translations, plugins, kernels and compilers of a certain version. A description that many
packages share is kept once, for the first of them.

PACKAGES is the archive's own index of packages, a `Packages` file or what `apt-cache dumpavail` prints. A package that
stands there gets its short description in the title ("cmus: lightweight ncurses audio player"), the field `section`,
without the archive's area (`games`, not `contrib/games`), and `installed_kb`, its size when it is installed, in KiB.
The title of the others is their name alone.
"""

import argparse
import gzip
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path

from lightretriever.artifacts.corpus.beir import Corpus

LEFT_OUT = re.compile(
    r"^(lib|gir1\.2-|golang-|node-|ruby-|python3?-|r-cran-|r-bioc-|haskell-|elpa-|fonts-|texlive-|task-|php-|ocaml-"
    r"|rust-|vim-|lua-|linux-|gcc-|g\+\+-|cpp-|gfortran-|gnat-|gdc-|gobjc|gm2-|hunspell-|aspell-|myspell-|mythes-"
    r"|hyphen-|manpages-|firefox-esr-l10n-)"
    r"|-(dev|doc|docs|dbg|dbgsym|data|common|perl|java|locales|l10n|udeb|ruby|plugin|plugins|examples|test|tests"
    r"|source|dkms|headers|all)$"
    r"|-l10n-|-locale-|-lang-|-dev-|-i18n-"
)

Facts = dict[str, str | int]


def read_packages(lines: Iterable[str]) -> dict[str, Facts]:
    """The title and the fields of each package in the archive's index; of several versions those of the first."""
    found: dict[str, Facts] = {}
    facts: Facts = {}
    name = ""
    for line in lines:
        key, _, value = line.rstrip("\n").partition(": ")
        if key == "Package":
            name, facts = value, {}
            found.setdefault(name, facts)
        elif key == "Description" and value:
            facts["title"] = f"{name}: {value}"
        elif key == "Section" and value:
            facts["section"] = value.rpartition("/")[2]
        elif key == "Installed-Size":
            facts["installed_kb"] = int(value)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Write the chosen lines, gzipped without a time stamp: the same input gives the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the corpus file or its BEIR folder")
    parser.add_argument("output", type=Path)
    parser.add_argument("--packages", type=Path, help="the archive's index, for titles, sections and sizes")
    given = parser.parse_args(arguments)
    packages: dict[str, Facts] = {}
    if given.packages is not None:
        with given.packages.open(encoding="utf-8") as file:
            packages = read_packages(file)
    seen: set[str] = set()
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as output:
        for document in Corpus(given.corpus):
            if LEFT_OUT.search(document.id) or document.text in seen:
                continue
            seen.add(document.text)
            record = {**json.loads(document.raw), **packages.get(document.id, {})}
            output.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(buffer.getvalue())
    print(f"{len(seen)} documents in {given.output}")


if __name__ == "__main__":
    main()
