"""Lines in a log while a stage works, also where it says nothing for long."""

from collections.abc import Callable
from threading import Event

import pytest

from lightretriever.artifacts.progress import ProgressBar, reporting


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.progress.LOG_EVERY_S", 0.02)


def lines_until(enough: Callable[[str], bool], capsys: pytest.CaptureFixture[str]) -> str:
    told = ""
    for _ in range(1_500):
        told += capsys.readouterr().err
        if enough(told):
            return told
        Event().wait(0.02)
    raise AssertionError(told)


def test_a_stage_that_counts_nothing_for_long_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("encode"), ProgressBar("encode", total=1_000, unit="documents") as progress:
        progress.advance(512)
        capsys.readouterr()
        told = lines_until(lambda told: told.count("\n") >= 2, capsys)
    assert all(line.startswith("encode: 512/1,000 documents, ") for line in told.splitlines())
    assert " left" in told


def test_work_outside_of_any_stage_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("index"):
        told = lines_until(lambda told: "\n" in told, capsys)
        assert told.startswith("index: at work, ")
        with ProgressBar("dense", total=10, unit="documents"):
            lines_until(lambda told: "dense: 0/10 documents, " in told, capsys)
        capsys.readouterr()
        lines_until(lambda told: "index: at work, " in told, capsys)
    capsys.readouterr()
    Event().wait(0.1)
    assert capsys.readouterr().err == ""


def test_the_innermost_stage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("build"), ProgressBar("outer", total=2, unit="parts"), ProgressBar("inner", total=3, unit="texts"):
        capsys.readouterr()
        assert "outer" not in lines_until(lambda told: "inner: 0/3 texts" in told, capsys)
