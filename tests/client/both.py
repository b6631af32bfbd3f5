"""Both clients behind one face, so that every test of a call is made with each of them."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Self, cast

from lightretriever.service.client import AsyncSearchClient, SearchClient

Client = SearchClient
Maker = Callable[..., Client]


class Driven:
    """The client for asyncio, driven from outside its event loop."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncSearchClient(*arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._client, name)

        def driven(*arguments: Any, **options: Any) -> Any:
            called = call(*arguments, **options)
            return self._runner.run(called) if inspect.iscoroutine(called) else self._stream(called)

        return driven

    def _stream(self, stream: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(stream, None)

        async def closed() -> None:
            await stream.aclose()

        try:
            while (response := self._runner.run(following())) is not None:
                yield response
        finally:
            self._runner.run(closed())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


BOTH: dict[str, Maker] = {"sync": SearchClient, "async": cast(Maker, Driven)}
