"""Threads that work for the event loop: a request's whole work is done by one of them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

__all__ = ["ThreadPool"]

T = TypeVar("T")
_NAME: Final = "request"


class ThreadPool:
    """Made and used in the event loop. The standard library's executor would do, but its futures, which any thread may
    wait for and which asyncio has to copy into its own, take longer than all else that HTTP needs of a thread."""

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads = [Thread(target=self._work, name=f"{_NAME}_{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def run(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Let a thread call `function`. A call that is cancelled before its turn is never made."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((future, function, arguments))
        return future

    def close(self) -> None:
        """End the threads, after what waits for them."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._do(*job)
            del job  # nothing of a request outlives it here

    def _do(self, future: "asyncio.Future[Any]", function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            value = function(*arguments)
        except BaseException as error:
            self._tell(future, future.set_exception, error)
            del future  # the error holds this frame, and so itself
        else:
            self._tell(future, future.set_result, value)

    def _tell(self, future: "asyncio.Future[Any]", settle: Callable[[Any], None], outcome: object) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(_settle, future, settle, outcome)


def _settle(future: "asyncio.Future[Any]", settle: Callable[[Any], None], outcome: object) -> None:
    if not future.done():
        settle(outcome)
