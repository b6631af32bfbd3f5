"""Logs as JSON lines on stderr, one object per line, the web server's own among them."""

import logging
import sys

import orjson
import structlog
from structlog.typing import EventDict

__all__ = ["configure_logging"]


def configure_logging(level: str) -> None:
    """Send every log record from `level` (as in `Settings.log_level`) up to stderr as JSON. Replaces other handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _render,
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The server's chatter at start and stop says nothing that ours doesn't.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def _render(logger: object, method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=str).decode()
