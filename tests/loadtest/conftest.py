"""Shared by the tests of load testing: a folder of queries."""

import json
from pathlib import Path

import pytest

QUERIES = ["music player", "a small library for numbers", "terminal", "text editor with plugins"]


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """A folder in BEIR layout, without a corpus."""
    folder = tmp_path / "queries"
    folder.mkdir()
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(QUERIES)]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    return folder
