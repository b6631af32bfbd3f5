"""Logs as JSON lines on stderr, one object per line, the web server's own among them."""

import logging
import re
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import orjson

__all__ = ["configure_logging"]

# What every record has; the rest is what a call gave as `extra`.
_COMMON: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# Control characters and those that turn the direction of writing: a terminal obeys them, or shows another text. Lines
# end at some of them.
_UNSEEN: Final = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_OWN: Final = len(vars(logging.makeLogRecord({})))


def configure_logging(level: str) -> None:
    """Send every log record from `level` (as in `Settings.log_level`) up to stderr as JSON. Replaces other handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # No line tells these; they cost a request more than the writing of its line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # The server's chatter at start and stop says nothing that ours doesn't.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


class _JsonFormatter(logging.Formatter):
    """A line for every request is a good part of what a request costs: structlog takes three times as long for it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        given = islice(vars(record).items(), _OWN, None)  # the record's own come first
        line |= {name: value for name, value in given if name not in _COMMON}
        line["timestamp"] = datetime.fromtimestamp(record.created, UTC)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack_info"] = record.stack_info
        text = orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()
        return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
