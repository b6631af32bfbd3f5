"""Log lines are JSON objects with what was given to them."""

import json
import logging
import sys
from io import StringIO
from typing import Any

import pytest

from lightretriever.service.observability.logging import configure_logging

LOG = logging.getLogger("a.test")
FLAGS = ("logThreads", "logProcesses", "logMultiprocessing")


@pytest.fixture
def written(unconfigured: None, monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What is logged, by the service's own configuration."""
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for name in FLAGS:
        monkeypatch.setattr(logging, name, True)
    configure_logging("info")
    return stream


def lines(written: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_has_the_event_and_what_was_given_beside_it(written: StringIO) -> None:
    LOG.info("%s of %d", "one", 2, extra={"leg": "dense", "odd": {1}, "none": None})
    LOG.debug("below the level")
    (line,) = lines(written)
    assert line.pop("timestamp").endswith("Z")
    about = {"event": "one of 2", "level": "info", "logger": "a.test"}
    assert line == about | {"leg": "dense", "odd": "{1}", "none": None}


def test_a_line_has_the_error(written: StringIO) -> None:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        LOG.exception("failed")
    LOG.warning("here", stack_info=True)
    failed, here = lines(written)
    assert failed["level"] == "error"
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("ValueError: no\nsuch thing")
    assert "test_a_line_has_the_error" in here["stack_info"]


def test_no_character_reaches_a_terminal_that_it_would_obey(written: StringIO) -> None:
    text = "a\x1b[2J\x9b2J\x85\u2028b\u202egpj.exe\u2066\ufeff\u200b\x7f ü 漢 🎉"
    LOG.info("here", extra={"path": text})
    raw = written.getvalue().rstrip("\n")
    assert raw.isprintable()
    assert "ü 漢 🎉" in raw
    assert lines(written)[0]["path"] == text
