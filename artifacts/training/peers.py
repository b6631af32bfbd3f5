"""The processes of a run. The others would wait for one that fails, so it tells them what to say and to end."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from time import sleep
from typing import Final

from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from lightretriever.artifacts.errors import ModelError

__all__ = ["Peers"]

_FAILED, _SAID = "peers/failed", "peers/said/{}"
_STATUS: Final = 2
_EVERY_S, _WHILE = 0.5, timedelta(seconds=30)


class Peers:
    """This process among several, which a launcher started and which have met.

    A thread looks for the error of another process: the main thread may be in the midst of an exchange with it, which
    would never end.
    """

    def __init__(self, say: Callable[[ModelError], None]) -> None:
        """`say` prints the error of another process, before this one ends with status 2."""
        self._store, number, self._processes = next(iter(rendezvous("env://")))
        self._own, self._say, self._failing = _SAID.format(number), say, False
        Thread(target=self._listen, daemon=True).start()

    def tell(self, error: ModelError) -> None:
        """Tell the other processes that this one ends with an error, and wait till they have said it, at most 30 s: a
        launcher stops them when the first process has ended."""
        self._failing = True
        with suppress(DistError):
            self._store.set(self._own, "")
            self._store.set(_FAILED, json.dumps([error.message, error.remedy]))
            self._store.wait([_SAID.format(number) for number in range(self._processes)], _WHILE)

    def _listen(self) -> None:
        with suppress(DistError):  # the others have ended
            while not self._store.check([_FAILED]):
                sleep(_EVERY_S)
            if not self._failing:
                message, remedy = json.loads(self._store.get(_FAILED))
                self._say(ModelError(message, remedy=remedy))
                self._store.set(self._own, "")
                os._exit(_STATUS)
