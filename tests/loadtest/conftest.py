"""Shared by the tests of load testing: a folder of queries."""

from pathlib import Path

import pytest

from tests.support.judged import write_queries

QUERIES = ["music player", "a small library for numbers", "terminal", "text editor with plugins"]


@pytest.fixture(autouse=True)
def few_warm_up_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every server that is started."""
    monkeypatch.setenv("LIGHTRETRIEVER_WARM_UP_QUERIES", "3")


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """A folder in BEIR layout, without a corpus."""
    return write_queries(tmp_path / "queries", QUERIES).parent
