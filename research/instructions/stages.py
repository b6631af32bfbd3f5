"""What valgrind runs: the stages without Lucene, one after the other, each counted by itself.

valgrind … python -m research.instructions.stages BUNDLE QUERIES COUNT SEED
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.generator import read_texts
from lightretriever.service.backends.base import ScoredDocuments
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.fusion import align, fuse_linear

from research.servers.bundle_documents import query_encoder

__all__ = ["NOTHING", "main", "stages_of"]

NOTHING: Final = "nothing"
"""The stage that only counts what counting takes."""
_CANDIDATES: Final = 100
_WEIGHTS: Final = (0.7, 0.3)


def stages_of(bundle: Bundle, texts: Sequence[str]) -> dict[str, Callable[[int], Any]]:
    """Give the stages, each a function of the number of a text."""
    task, encoder = bundle.manifest.default_task, query_encoder(bundle)
    tokens = encoder.vocabulary.kind == "tokens"  # words are Lucene's
    dense = bundle.dense()
    queries = [encoder.encode(text, task, StageClock(), sparse=tokens) for text in texts]

    def by_dense(number: int) -> ScoredDocuments:
        vector = queries[number].dense
        if vector is None:
            raise ValueError(f"no token of {texts[number]!r} has a vector")
        return ScoredDocuments(*dense.search(vector, _CANDIDATES))

    hits = [by_dense(number) for number in range(len(queries))]
    found = [(one, hits[number - 1]) for number, one in enumerate(hits)]
    return {
        NOTHING: lambda number: None,
        "tokenize": lambda number: encoder.tokenizer.encode(texts[number]),
        "encode": lambda number: encoder.encode(texts[number], task, StageClock(), sparse=tokens),
        "dense": by_dense,
        "fuse": lambda number: fuse_linear(align(found[number]), _WEIGHTS),
    }


def main(arguments: Sequence[str]) -> None:
    """Run every stage on the queries of a folder, and let callgrind write a file for each."""
    path, folder, count, seed = arguments
    texts = read_texts(Path(folder), int(seed))[: int(count)]
    for name, stage in stages_of(Bundle.open(Path(path)), texts).items():
        stage(0)  # first calls import and allocate
        _control("--instr=on")
        _control("--zero")
        for number in range(len(texts)):
            stage(number)
        _control(f"--dump={name}")
        _control("--instr=off")


def _control(command: str) -> None:
    subprocess.run(["callgrind_control", command, str(os.getpid())], capture_output=True, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
