"""Opens bundles that may be damaged and tells what came of it, in a process of its own: damage can end a process."""

import faulthandler
import hashlib
import json
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Self

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.errors import ServiceError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.tiny import tiny_documents

__all__ = ["Opener"]

SETTINGS: Final = Settings(deadline_ms=20_000, warm_up_queries=2, search_threads=2)
QUERIES: Final = (
    "play music from the terminal",
    "scientific papers",
    "日本語",
    "naïve façade 🎵",
    "doc",
    "over the network",
)
_HANGS_S: Final = 120.0


def answers(engine: SearchEngine) -> str:
    """A digest of all that the bundle answers, times left out. An error is an answer too."""
    found: list[Any] = []
    for task in engine.bundle.manifest.tasks:
        for query in QUERIES:
            for mode in engine.modes:
                request = SearchRequest.model_validate({"query": query, "mode": mode, "k": 30, "task": task})
                found.append(_answer(engine, request))
    for document in tiny_documents():
        try:
            found.append(engine.document(document.id).fields)
        except ServiceError as error:
            found.append(error.kind)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _answer(engine: SearchEngine, request: SearchRequest) -> Any:
    try:
        return engine.search(request).model_dump(mode="json", exclude={"timings_ms"})
    except ServiceError as error:
        return error.kind


def outcome(how: str, path: Path) -> tuple[str, str]:
    """What comes of opening a bundle, warming it up, and asking it, in a word and in more of them. What hangs is a
    crash."""
    faulthandler.dump_traceback_later(_HANGS_S, exit=True)
    try:
        if how == "served":
            with EngineHolder.open(path, SETTINGS) as serving:
                serving.engine.warm_up()
                return "answers", answers(serving.engine)
        with SearchEngine.open(Bundle.open(path), SETTINGS) as engine:
            engine.warm_up()
            return "answers", answers(engine)
    except (LightRetrieverError, ServiceError) as error:
        return "refused", str(error)
    except Exception as error:  # a mistake of ours: the test tells of it
        return "mistake", f"{type(error).__name__}: {error}"
    finally:
        faulthandler.cancel_dump_traceback_later()


class Opener:
    """Opens bundles in a process of its own, which is started again when one of them ended it."""

    def __init__(self) -> None:
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), initializer=faulthandler.enable)

    def open(self, how: str, bundle: Path) -> tuple[str, str]:
        """Open a bundle as the server does (`served`), or without reading the files first (`unhashed`). What came of
        it: `refused` with the message, `answers` with a digest, `mistake`, or `crashed`."""
        try:
            return self._pool.submit(outcome, how, bundle).result()
        except BrokenProcessPool:
            self._pool = self._started()
            return "crashed", "see stderr"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
