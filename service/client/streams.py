"""Any number of queries: batches, several at once, with the answers in order."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from lightretriever.service.client.errors import ClientError

__all__ = ["Numbered", "check_sizes", "in_order", "in_order_async", "numbered"]

T = TypeVar("T")
R = TypeVar("R")
Numbered = tuple[int, list[T]]
"""A batch, and the position of its first item among all."""


def check_sizes(**sizes: int) -> None:
    """Raise ClientError unless each is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ClientError(f"{name} is {value}.", remedy="Name 1 or more.")


def numbered(items: Iterable[T], size: int) -> Iterator[Numbered[T]]:
    """Split into batches."""
    iterator, first = iter(items), 0
    while batch := list(islice(iterator, size)):
        yield first, batch
        first += len(batch)


def in_order(work: Callable[[T], list[R]], batches: Iterable[T], concurrency: int) -> Generator[R]:
    """Yield the results of batches in order. `concurrency` run at a time, and one more is read meanwhile, so that they
    stay busy while the caller takes results. ClientError if the process is forked meanwhile."""
    pending: deque[Future[list[R]]] = deque()
    process = os.getpid()

    def first() -> Generator[R]:
        yield from pending.popleft().result()
        if os.getpid() != process:  # where the pool's threads don't exist
            raise ClientError("The stream was begun in another process.", remedy="Begin one in each process.")

    with ThreadPoolExecutor(concurrency, thread_name_prefix="search-many") as pool:
        try:
            for batch in batches:
                pending.append(pool.submit(work, batch))
                if len(pending) > concurrency:
                    yield from first()
            while pending:
                yield from first()
        finally:
            for future in pending:
                future.cancel()


async def in_order_async(
    work: Callable[[T], Coroutine[Any, Any, list[R]]], batches: Iterable[T], concurrency: int
) -> AsyncGenerator[R]:
    """Yield the results of batches in order, as `in_order` does."""
    gate = asyncio.Semaphore(concurrency)

    async def gated(batch: T) -> list[R]:
        async with gate:
            return await work(batch)

    pending: deque[asyncio.Task[list[R]]] = deque()
    try:
        for batch in batches:
            pending.append(asyncio.create_task(gated(batch)))
            if len(pending) > concurrency:
                for result in await pending.popleft():
                    yield result
        while pending:
            for result in await pending.popleft():
                yield result
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
