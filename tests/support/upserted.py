"""A bundle that was built by a recipe, and its corpus, which changes."""

import json
from pathlib import Path
from typing import Any

from lightretriever.artifacts.bundle.reader import Bundle
from tests.pipeline.test_growing import write_recipe
from tests.support.commands import run


class Upserted:
    """A recipe that was built, its bundle, and its corpus."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.recipe, self.corpus = write_recipe(folder, kind), folder / "corpus.jsonl"
        self.write([{**line, "topic": f"t{number % 3}"} for number, line in enumerate(self.lines())])
        run("build", self.recipe)
        self.bundle = Bundle.open(folder / "bundle")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.corpus.read_text("utf-8").splitlines()]

    def write(self, lines: list[dict[str, Any]]) -> None:
        self.corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def ids(self, ids: str) -> Path:
        """Write a file of ids, with one a line."""
        file = self.corpus.with_name("ids.txt")
        file.write_text(ids)
        return file


def counts(summary: dict[str, Any]) -> dict[str, int]:
    """Return the counts of `upsert`, by its summary."""
    return {name: summary[name] for name in ("unchanged", "fields", "encoded", "created")}
