"""Anserini's own REST server, from the jar that pyserini brings, over the word index of a bundle's documents.

    python -m lightretriever.loadtest.servers.anserini BUNDLE --work FOLDER --port 0

Its route is `GET /v1/{index}/search?query=…&hits=…`. The index has the words of the documents and not their JSON, so
its answers have ids and scores alone, which is less work than the other systems do. pyserini's own server (Python)
can't be used: see docs/speed.md.
"""

import argparse
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.loadtest.generator import closed_loop, run_loop
from lightretriever.loadtest.servers.bm25 import word_index
from lightretriever.loadtest.wire import LoadError, Target, anserini_form
from lightretriever.service.search.documents import Documents

__all__ = ["main"]

_WARM_UP_S: Final = 5.0
_LIMIT_S: Final = 120.0  # the first query loads most of the classes
_PATIENCE: Final = 600
_PAUSE_S: Final = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(description="Anserini's REST server over the documents of a bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the index")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args(arguments)
    try:
        bundle = Bundle.open(given.bundle)
        with bundle.sparse() as index:
            path = word_index(bundle, index, given.work).absolute()
            probes = Documents(index).probes(2000)
        port = given.port or _free_port(given.host)
        words = ["--host", given.host, "--port", str(port)]
        Thread(target=java_call, args=(java_class("io.anserini.api.RestServer").main, words), daemon=True).start()
        url = f"http://{given.host}:{port}"
        _wait(given.host, port)
        requests = [anserini_form(str(path))(Target.of(url), probe, 10) for probe in probes]
        result = run_loop(closed_loop(url, requests, connections=1, seconds=_WARM_UP_S, limit_s=_LIMIT_S))
        if not result["answered"]:
            raise LoadError(f"Anserini's server answered none of {result['sent']} queries on {path}.")
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"Ready: {path} at {url}", flush=True)
    signal.pause()
    return 0


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _wait(host: str, port: int) -> None:
    for _ in range(_PATIENCE):
        try:
            socket.create_connection((host, port)).close()
        except OSError:
            sleep(_PAUSE_S)
        else:
            return
    raise LoadError(f"Anserini's server does not listen on {host} port {port}.", remedy="See what it says on stderr.")


if __name__ == "__main__":
    sys.exit(main())
