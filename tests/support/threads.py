"""Servers in a thread of the test's process."""

from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import TCPServer
from threading import Thread


@contextmanager
def in_a_thread(server: TCPServer) -> Iterator[str]:
    """Run a server of 127.0.0.1 until the block ends, and yield its address as `http://`."""
    with server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
