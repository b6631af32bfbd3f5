"""Lines in a log while a stage works."""

import sys

import pytest

from lightretriever.artifacts.reports import ProgressBar, duration, tracked


def test_a_log_has_a_line_every_while_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProgressBar("encode", total=1_200, unit="documents") as progress:
        progress.skip(200)
        progress.advance(512)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr("lightretriever.artifacts.reports.LOG_EVERY_S", 0.0)
        with ProgressBar("inner", total=None, unit="texts") as inner:
            inner.advance(2_000)
            assert capsys.readouterr().err == "inner: 2,000 texts, 0.0 s\n"
        assert capsys.readouterr().err.startswith("inner: ")
        progress.advance(100)
        line = capsys.readouterr().err
        assert line.startswith("encode: 612/1,000 documents, ")
        assert line.endswith(" left\n")
        progress.advance(388)
        capsys.readouterr()
    assert capsys.readouterr().err.startswith("encode: 1,000/1,000 documents, ")


def test_on_a_terminal_one_line_changes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("lightretriever.artifacts.reports._LIVE_EVERY_S", 0.0)
    assert list(tracked("ab", "encode", total=2, unit="documents")) == ["a", "b"]
    lines = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert [line.partition(" ")[2].partition(" ")[0] for line in lines] == ["1/2", "2/2", "2/2"]


def test_a_stage_that_fails_has_no_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="bad"), ProgressBar("encode", total=1, unit="documents"):
        raise ValueError("bad")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.84, "0.8 s"), (41.7, "42 s"), (725, "12 min 5 s"), (12_000, "3 h 20 min")]
)
def test_a_length_of_time_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
