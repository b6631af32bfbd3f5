"""The processes of a run. The others would wait for one that fails, so it tells them what to say and to end."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Final, Self

from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from lightretriever.artifacts.errors import ModelError

__all__ = ["Peers"]

_FAILED, _SAID = "peers/failed", "peers/said/{}"
_STATUS: Final = 2
_EVERY_S, _WHILE = 0.5, timedelta(seconds=30)


class Peers:
    """This process among several, which a launcher started and which have met.

    Inside, a thread looks for the error of another process: the main thread may be in the midst of an exchange with it,
    which would never end. The thread ends with the block: one that is left at the interpreter's end aborts the process.
    """

    def __init__(self, say: Callable[[ModelError], None]) -> None:
        """`say` prints the error of another process, before this one ends with status 2."""
        self._store, number, self._processes = next(iter(rendezvous("env://")))
        self._own, self._say, self._ended = _SAID.format(number), say, Event()
        self._thread = Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def tell(self, error: ModelError) -> None:
        """Tell the other processes that this one ends with an error, and wait till they have said it, at most 30 s: a
        launcher stops them when the first process has ended."""
        self._ended.set()
        with suppress(DistError):
            self._store.set(self._own, "")
            self._store.set(_FAILED, json.dumps([error.message, error.remedy]))
            self._store.wait([_SAID.format(number) for number in range(self._processes)], _WHILE)

    def _listen(self) -> None:
        with suppress(DistError):  # the others have ended
            while not self._ended.wait(_EVERY_S):
                if self._store.check([_FAILED]) and not self._ended.is_set():  # of this process itself
                    message, remedy = json.loads(self._store.get(_FAILED))
                    self._say(ModelError(message, remedy=remedy))
                    self._store.set(self._own, "")
                    os._exit(_STATUS)
