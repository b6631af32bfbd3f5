"""uvicorn's HTTP protocol, which closes all connections whose client is silent, and tells whether it is free."""

from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

__all__ = ["Protocol"]


class Protocol(HttpToolsProtocol):
    """uvicorn's looks after a client that is silent only when it has answered it: one that never sent a request, or
    stopped within a head, would keep its connection for ever. A body has a deadline of its own, in the routes."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        """As uvicorn calls it."""
        super().__init__(config, server_state, app_state)
        self._in_message = False

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(transport)
        self._look_later(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        super().data_received(data)  # which looks no more, whatever it was
        if self.timeout_keep_alive_task is None and self._is_answered() and not self.transport.is_closing():
            self._look_later(self.timeout_keep_alive)

    def on_message_begin(self) -> None:
        """Note that the bytes that come next belong to a request."""
        self._in_message = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """Note that what comes next begins a request."""
        self._in_message = False
        super().on_message_complete()

    def _look_later(self, seconds: float) -> None:
        """Look in so many seconds whether the client is silent."""
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _is_answered(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _is_free(self) -> bool:
        """Whether nothing of another request is left to be read, answered or written."""
        if self._in_message or not self._is_answered():
            return False
        return not self.transport.is_closing() and not self.transport.get_write_buffer_size()
