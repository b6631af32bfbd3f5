"""The service with a model in the query path: the same indexes, fusion and HTTP with another query encoder.

    python -m lightretriever.loadtest.model_server BUNDLE --model MODEL [--adapter ADAPTER] [--device cuda] --port 0

MODEL is the causal language model that encoded the documents, or a sentence-transformers folder. It gives the dense
query; a language model that learned the impacts of tokens gives the sparse one too, else the bundle does. For a fair
comparison, the model encodes requests that wait while it is busy as one batch, up to `--batch`, and as many requests
run at once. Settings are the service's.
"""

import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.evaluation.full import QueryModel
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.loadtest.program import ADDRESS, BUNDLE, MODEL, option, program
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.collections.collections import DEFAULT, Collections, EngineHolder
from lightretriever.service.errors import FieldError, UnsearchableError, shortened
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import Parts, SearchEngine
from lightretriever.service.serving.server import BACKLOG, serve
from lightretriever.service.settings import load_settings

Encode = Callable[[Sequence[str]], list[EncodedQuery]]
"""Encodes texts as one batch."""

OPTIONS: Final = (BUNDLE, option("--batch", 16, "most queries encoded together"), *ADDRESS)


class ModelQueryEncoder(QueryEncoder):
    """Encodes with a model. It encodes texts that wait while it is busy as one batch of at most `batch`."""

    def __init__(self, base: QueryEncoder, encode: Encode, batch: int) -> None:
        super().__init__(base.tokenizer, base.tables, base.vocabulary)
        self._encode = encode
        self._batch = batch
        self._queue: SimpleQueue[tuple[str, Future[EncodedQuery]]] = SimpleQueue()
        Thread(target=self._work, name="model", daemon=True).start()

    def encode(
        self,
        text: str,
        task: str,
        clock: StageClock,
        *,
        dense: bool = True,
        sparse: bool = True,
        field: str = "query",
        added: Sequence[tuple[str, float]] = (),
        split: bool = True,
    ) -> EncodedQuery:
        """Encode one text for the default task. Raise the model's errors. It knows no added texts."""
        started = clock.add("tokenize", perf_counter())  # encoding includes the model's tokenising
        future: Future[EncodedQuery] = Future()
        self._queue.put((text, future))
        query = future.result()
        clock.add("encode", started)
        if dense and query.dense is None:
            reason = "the model's vector of this text is zero, so no document is nearer than another"
            raise UnsearchableError.of(FieldError(field, reason, shortened(text)))
        return query

    def _work(self) -> None:
        while True:
            waiting = [self._queue.get()]
            while len(waiting) < self._batch:
                try:
                    waiting.append(self._queue.get_nowait())
                except Empty:
                    break
            self._answer(waiting)

    def _answer(self, waiting: list[tuple[str, Future[EncodedQuery]]]) -> None:
        try:
            queries = self._encode([text for text, _ in waiting])
        except Exception as error:
            if len(waiting) == 1:
                waiting[0][1].set_exception(error)
                return
            for one in waiting:  # so that a bad text fails alone
                self._answer([one])
        else:
            for (_, future), query in zip(waiting, queries, strict=True):
                future.set_result(query)


def model_encoder(model: ModelRecipe, bundle: Bundle, base: QueryEncoder) -> Encode:
    """Load a model and give its query encoder, with the instruction of the bundle's default task. `base`, the bundle's
    own, gives the sparse query where the model doesn't (`QueryModel`). Raises ModelError."""
    loaded, task = QueryModel.load(model, bundle), bundle.manifest.default_task

    def encode(texts: Sequence[str]) -> list[EncodedQuery]:
        made = loaded.encode(texts, task)
        if not loaded.sparse:
            return joined(texts, [query.dense for query in made], bundle, base)
        return [EncodedQuery.of_model(query.terms, query.weights, query.dense) for query in made]

    return encode


def joined(
    texts: Sequence[str], vectors: Sequence[Float32Array | None], bundle: Bundle, base: QueryEncoder
) -> list[EncodedQuery]:
    """Join a model's vectors of texts, n of (D,), with the sparse queries of `base`, the bundle's own encoder."""
    own = [base.encode(text, bundle.manifest.default_task, StageClock(), dense=False) for text in texts]
    return [replace(query, dense=vector) for query, vector in zip(own, vectors, strict=True)]


def open_engine(bundle: Bundle, made: Callable[[QueryEncoder], Encode], *, batch: int) -> SearchEngine:
    """Open the engine with the query encoder that `made` makes of the bundle's own. Raise LightRetrieverError."""
    settings = load_settings()
    settings = settings.model_copy(update={"search_threads": max(settings.threads(), batch)})
    bundle.check_hashes()
    parts = Parts.open(bundle, settings)
    try:
        parts = replace(parts, encoder=ModelQueryEncoder(parts.encoder, made(parts.encoder), batch))
        return SearchEngine(bundle, settings, parts)
    except BaseException:
        parts.close()
        raise


def serve_model(given: Namespace, bundle: Bundle, made: Callable[[QueryEncoder], Encode]) -> None:
    """Serve a bundle as `open_engine` opens it until SIGTERM; `given` has `OPTIONS`, and `model`, a path."""
    configure_logging("info")
    with (
        open_engine(bundle, made, batch=given.batch) as engine,
        socket.create_server((given.host, given.port), backlog=BACKLOG) as listener,
    ):
        collections = Collections({DEFAULT: EngineHolder(engine)})
        url = f"http://{given.host}:{listener.getsockname()[1]}"
        served = f"{bundle.manifest.documents} documents of {bundle.manifest.name!r}"
        line = f"Ready: {served} with the model {Path(given.model).name} at {url}"
        serve(collections, [listener], on_ready=lambda: print(line, flush=True))


@program(*OPTIONS, *MODEL)
def main(given: Namespace) -> None:
    """Serve until SIGTERM."""
    if given.model is None:
        raise ModelError("There is no model.", remedy="Give --model.")
    chosen = {"path": given.model, "adapter": given.adapter, "bos_token": given.bos_token, "device": given.device}
    model, bundle = ModelRecipe(**chosen), Bundle.open(given.bundle)
    serve_model(given, bundle, lambda base: model_encoder(model, bundle, base))


if __name__ == "__main__":
    sys.exit(main())
