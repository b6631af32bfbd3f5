"""What the connections of a process have in common on the shorter way of plain searches."""

from lightretriever.service.http.fastpath.heads import Heads
from lightretriever.service.http.state import Desk

__all__ = ["Shortcut"]


class Shortcut:
    """What a process needs for plain searches: `POST /search`, whole and at once, as clients send it that keep their
    connections. Their answers are those of the route, to the byte."""

    def __init__(self, desk: Desk) -> None:
        settings = desk.settings
        self.desk = desk
        self.heads = Heads(settings.max_body_bytes)
        # Spans and CORS lie around the routes; a limit by address has to know what proxies say of it.
        self.open = desk.tracing is None and not settings.cors_origins and not settings.rate_limit_per_s
        """Whether plain searches may take it."""
        self.watching = True
        """Whether sockets can be watched, as far as is known."""

    def look(self) -> None:
        """See to it that requests are read even while all threads have work. To be called now and then."""
        self.desk.serving.current.engine.crew.look_if_late()
