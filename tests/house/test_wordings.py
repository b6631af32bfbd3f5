"""tests/wordings.txt speaks of tests that are there, see `tests.support.wordings`."""

import ast
from functools import cache
from pathlib import Path

from tests.support.wordings import read_wordings

ROOT = Path(__file__).parents[2]


@cache
def functions_of(file: str) -> set[str]:
    path = ROOT / file
    found = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_entry_belongs_to_a_test() -> None:
    gone = []
    for entry in read_wordings():
        file, _, test = entry.partition("::")
        if test.partition("[")[0] not in functions_of(file):
            gone.append(entry)
    assert not gone, "delete these from tests/wordings.txt"
