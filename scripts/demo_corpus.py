"""Choose the demo's documents: the programs among Debian's packages, in BEIR layout.

    python scripts/demo_corpus.py DEBIAN_PACKAGE_DESCRIPTIONS OUTPUT.jsonl.gz

Left out are packages that nobody searches for by what they do: libraries and language bindings, development files,
documentation, data, fonts, translations, plugins, kernels and compilers of a certain version. A description that many
packages share is kept once, for the first of them.
"""

import argparse
import gzip
import io
import re
from pathlib import Path

from artifacts.corpus import Corpus

LEFT_OUT = re.compile(
    r"^(lib|gir1\.2-|golang-|node-|ruby-|python3?-|r-cran-|r-bioc-|haskell-|elpa-|fonts-|texlive-|task-|php-|ocaml-"
    r"|rust-|vim-|lua-|linux-|gcc-|g\+\+-|cpp-|gfortran-|gnat-|gdc-|gobjc|gm2-|hunspell-|aspell-|myspell-|mythes-"
    r"|hyphen-|manpages-|firefox-esr-l10n-)"
    r"|-(dev|doc|docs|dbg|dbgsym|data|common|perl|java|locales|l10n|udeb|ruby|plugin|plugins|examples|test|tests"
    r"|source|dkms|headers|all)$"
    r"|-l10n-|-locale-|-lang-|-dev-|-i18n-"
)


def main() -> None:
    """Write the chosen lines, gzipped without a time stamp: the same input gives the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the corpus file or its BEIR folder")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    seen: set[str] = set()
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        for document in Corpus(arguments.corpus):
            if LEFT_OUT.search(document.id) or document.text in seen:
                continue
            seen.add(document.text)
            file.write(document.raw + b"\n")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(buffer.getvalue())
    print(f"{len(seen)} documents in {arguments.output}")


if __name__ == "__main__":
    main()
