"""What stays in memory is not looked through again and again."""

import gc
import os
import signal
import weakref
from contextlib import closing
from socket import create_server

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections.collections import Collections
from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.serving.server import freeze_gc, serve
from lightretriever.service.settings import Settings


class Knot:
    """Holds itself: only the collector of cycles can end it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_stays_is_not_looked_through_again_and_what_is_gone_is_freed() -> None:
    kept, gone = Knot(), Knot()
    end = weakref.ref(gone)
    freeze_gc()
    assert not any(one is kept for one in gc.get_objects())
    assert end() is gone
    del gone
    gc.collect()
    assert end() is not None  # it was settled
    freeze_gc()
    assert end() is None
    later = Knot()
    assert any(one is later for one in gc.get_objects())


def test_a_process_that_serves_has_settled_when_it_is_ready(tiny_bundle: Bundle) -> None:
    seen: list[int] = []

    def ready() -> None:
        seen.append(gc.get_freeze_count())
        os.kill(os.getpid(), signal.SIGTERM)

    settings = Settings(deadline_ms=60_000, warm_up_queries=1)
    gc.unfreeze()  # what was there before the tests
    with closing(create_server(("127.0.0.1", 0))) as listener, EngineHolder.open(tiny_bundle.path, settings) as serving:
        serve(Collections({serving.name: serving}), [listener], ready)
        assert serving.on_closed is freeze_gc
    assert seen[0] > 10_000
