"""From the event loop to the threads that work on jobs, and back."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Response
from lightretriever.service.execution.jobs import Job
from lightretriever.service.execution.waiting import Done

__all__ = ["answer"]

T = TypeVar("T")


async def answer(begin: Callable[[Done], Sequence[Job[Any]]], write: Callable[[T], Response]) -> Response:
    """Begin jobs, and give what `write` makes of their outcome, in a thread too: a large answer would hold up all other
    requests here. Raises their error. When nobody waits any more, they take no further step."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Response] = loop.create_future()

    def done(value: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        written: Response | None = None
        if error is None:
            try:
                written = write(value)
            except Exception as mistake:
                error = mistake
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, future, written, error)

    jobs = begin(done)
    try:
        return await future
    except asyncio.CancelledError:
        for job in jobs:
            job.cancel()
        raise


def _settle(future: "asyncio.Future[Response]", written: Response | None, error: BaseException | None) -> None:
    if future.done():
        return
    if written is not None:
        future.set_result(written)
    elif error is not None:
        future.set_exception(error)
