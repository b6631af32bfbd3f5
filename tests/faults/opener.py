"""Opens bundles that may be damaged and tells what came of it, in a process of its own: damage can end a process.

    python -m tests.faults.opener

Each line of stdin is a JSON pair: how to open (`served`: as the server does, or `unhashed`: without reading the files
first), and the bundle's folder. Each is answered by a line of JSON: `{"refused": message}`, or `{"answers": digest}` of
what the bundle answers to a fixed set of queries, documents included.
"""

import faulthandler
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.errors import ServiceError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.tiny import tiny_documents

__all__ = ["QUERIES", "SETTINGS"]

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


def outcome(how: str, path: Path) -> dict[str, str]:
    """What comes of opening a bundle, warming it up, and asking it."""
    try:
        if how == "served":
            with EngineHolder.open(path, SETTINGS) as serving:
                serving.engine.warm_up()
                return {"answers": answers(serving.engine)}
        with SearchEngine.open(Bundle.open(path), SETTINGS) as engine:
            engine.warm_up()
            return {"answers": answers(engine)}
    except (LightRetrieverError, ServiceError) as error:
        return {"refused": str(error)}
    except Exception as error:  # a mistake of ours: the test tells of it
        return {"mistake": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer until stdin ends. What hangs is a crash."""
    faulthandler.enable()
    for line in sys.stdin:
        faulthandler.dump_traceback_later(_HANGS_S, exit=True)
        how, path = json.loads(line)
        print(json.dumps(outcome(how, Path(path))), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
