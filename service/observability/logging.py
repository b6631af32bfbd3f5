"""Logs as JSON lines on stderr, including those of the web server."""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

import orjson

# Attributes of every record; the others come from a call's `extra`.
_COMMON: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# Control characters and those that turn the direction of writing: a terminal obeys them, or shows another text. Lines
# end at some of them.
_UNSEEN: Final = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def configure_logging(level: str) -> None:
    """Write log records of at least `level` (as in `Settings.log_level`) to stderr as JSON. Replaces other handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # No line has these fields; collecting them costs more than writing the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # uvicorn's lines at start and stop repeat ours.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


class _JsonFormatter(logging.Formatter):
    """Every request writes a line, a good part of its cost: structlog takes three times as long."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        line |= {name: value for name, value in vars(record).items() if name not in _COMMON}
        line["timestamp"] = datetime.fromtimestamp(record.created, UTC)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()
        return _UNSEEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
