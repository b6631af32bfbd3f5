"""The answers to any number of searches in their order, several batches asked at once."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lightretriever.service.client.calls import Call, check_size
from lightretriever.service.client.errors import ClientError
from lightretriever.service.schemas import BatchResponse, SearchResponse

Batches = Iterable[Call[BatchResponse]]


def answers(
    ask: Callable[[Call[BatchResponse]], BatchResponse], batches: Batches, concurrency: int
) -> Generator[SearchResponse]:
    """Yield the answers of batches in order, of which `concurrency` are asked at a time. ClientError if the process is
    forked meanwhile."""
    check_size("concurrency", concurrency)
    pool, process = ThreadPoolExecutor(concurrency, thread_name_prefix="search-many"), os.getpid()
    pending: deque[Future[BatchResponse]] = deque()

    def first() -> list[SearchResponse]:
        if os.getpid() != process:  # where the pool's threads don't exist
            raise ClientError("The stream was begun in another process.", remedy="Begin one in each process.")
        return pending.popleft().result().results

    try:
        for batch in batches:
            results = first() if len(pending) == concurrency else []
            pending.append(pool.submit(ask, batch))
            yield from results
        while pending:
            yield from first()
    finally:
        pool.shutdown(cancel_futures=True)


async def answers_async(
    ask: Callable[[Call[BatchResponse]], Coroutine[Any, Any, BatchResponse]], batches: Batches, concurrency: int
) -> AsyncGenerator[SearchResponse]:
    """Yield the answers of batches in order, as `answers` does."""
    check_size("concurrency", concurrency)
    pending: deque[asyncio.Task[BatchResponse]] = deque()
    try:
        for batch in batches:
            results = (await pending.popleft()).results if len(pending) == concurrency else []
            pending.append(asyncio.create_task(ask(batch)))
            for result in results:
                yield result
        while pending:
            for result in (await pending.popleft()).results:
                yield result
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
