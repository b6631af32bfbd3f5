"""Fuzzing guided by coverage, with atheris, in a process of its own, which a finding ends.

    python -m tests.faults.fuzz TARGET FOLDER -runs=N -seed=S …

FOLDER takes the inputs that reach something new; the options are libFuzzer's.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["lightretriever"]):
    from tests.faults.targets import TARGETS, corpus

WORDS = (
    *("query", "k", "offset", "mode", "task", "fusion", "candidates", "fields", "deadline_ms", "allow_partial", "text"),
    *("searches", "method", "weights", "linear", "rrf", "rank_constant", "normalization", "dense", "sparse", "hybrid"),
    *("format", "format_version", "manifest_sha256", "files", "tasks", "sha256", "bytes", "tokenizer", "idf", "file"),
    *("null", "true", "1e999", "-0", "9223372036854775808", "\\\\ud800", "\\\\u0000", "NaN", "[[", "{}", "../"),
)


def main() -> None:
    """Fuzz one target."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    for number, content in enumerate(corpus(target)):
        (folder / f"seed-{number:03d}").write_bytes(content)
    words = folder.with_suffix(".dict")
    words.write_text("".join(f'"{word}"\n' for word in WORDS), encoding="utf-8")
    bounds = ["-max_len=4096", "-timeout=60", "-rss_limit_mb=4096"]
    options = [f"-dict={words}", f"-artifact_prefix={folder}.found-", *bounds, *sys.argv[3:]]
    atheris.Setup([sys.argv[0], str(folder), *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
