"""The threads that work for the event loop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable

import pytest

from service.pool import ThreadPool


def in_pool(threads: int, use: Callable[[ThreadPool], Awaitable[None]]) -> None:
    async def run() -> None:
        pool = ThreadPool(threads)
        try:
            await use(pool)
        finally:
            pool.close()

    asyncio.run(run())


def test_a_call_gives_its_value_from_another_thread() -> None:
    async def use(pool: ThreadPool) -> None:
        names = await asyncio.gather(*(pool.run(lambda: threading.current_thread().name) for _ in range(5)))
        assert set(names) <= {"request_0", "request_1"}

    in_pool(2, use)


def test_a_call_gives_its_error() -> None:
    async def use(pool: ThreadPool) -> None:
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
        assert await pool.run(divmod, 7, 2) == (3, 1)

    in_pool(1, use)


def test_a_call_that_is_cancelled_before_its_turn_is_never_made() -> None:
    made: list[str] = []
    go = threading.Event()

    async def use(pool: ThreadPool) -> None:
        first, second = pool.run(go.wait), pool.run(made.append, "second")
        third = pool.run(made.append, "third")
        second.cancel()
        go.set()
        await third
        assert first.done()

    in_pool(1, use)
    assert made == ["third"]


def test_a_call_that_is_cancelled_while_it_runs_ends_unheard() -> None:
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait()

    async def use(pool: ThreadPool) -> None:
        running = pool.run(work)
        await asyncio.to_thread(begun.wait)
        running.cancel()
        go.set()
        assert await pool.run(len, "abc") == 3

    in_pool(1, use)


def test_what_waits_is_done_before_the_threads_end() -> None:
    made: list[int] = []

    async def run() -> None:
        pool = ThreadPool(1)
        for number in range(10):
            pool.run(made.append, number)
        pool.close()

    asyncio.run(run())
    assert made == list(range(10))


class Thing:
    def fail(self) -> None:
        raise ArithmeticError


def test_nothing_of_a_call_outlives_it() -> None:
    async def use(pool: ThreadPool) -> None:
        thing = Thing()
        gone = weakref.ref(thing)
        gc.disable()
        try:
            with pytest.raises(ArithmeticError) as caught:
                await pool.run(thing.fail)
            del caught, thing
            await pool.run(len, "")  # the thread has let go of the call before
            assert gone() is None
        finally:
            gc.enable()

    in_pool(1, use)
