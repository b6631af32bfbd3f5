"""The search engine: encode, search the legs at the same time, fuse, fetch. Knows nothing of HTTP.

with SearchEngine.open(Bundle.open(path)) as engine:
    engine.search(SearchRequest(query="play music"))
"""

from collections.abc import Callable, Sequence
from threading import Event
from time import perf_counter
from typing import Final, Self, TypeVar

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import NotReadyError
from lightretriever.service.execution.executor import Call
from lightretriever.service.execution.memory import trim_heap
from lightretriever.service.observability.metrics import Mark, Metrics
from lightretriever.service.schemas import (
    Document,
    DocumentTerms,
    EncodeRequest,
    EncodeResponse,
    Mode,
    SearchRequest,
    SearchResponse,
)
from lightretriever.service.search.operations import Operations
from lightretriever.service.search.plan import REQUESTS, Parts, modes_of
from lightretriever.service.settings import Settings

__all__ = ["SearchEngine"]

_WARM_UP_DEADLINE_MS: Final = 5_000.0
_BM25_EVERY: Final = 10  # searches of the warm-up
_PROBES: Final = 500  # different searches of the warm-up
T = TypeVar("T")


class SearchEngine:
    """Searches one bundle. Any number of threads may use it at once."""

    def __init__(self, bundle: Bundle, settings: Settings, parts: Parts, metrics: Metrics | None = None) -> None:
        """Use `open` instead, which opens the parts. They are the engine's from now on."""
        self.bundle = bundle
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.parts = parts
        """What searches are made of."""
        self.modes = modes_of(bundle.manifest)
        """Modes in which the bundle can be searched."""
        self.operations = Operations(bundle.manifest, settings, parts, self.metrics)
        """What can be asked for, for who writes answers of plain dictionaries."""
        self.fusion_weights = self.operations.fusion_weights
        """Weights of a linear fusion that names none."""
        self._warm = False
        self._closed = False
        if metrics is None:
            self.publish()

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
        *,
        hashed: bool = True,
    ) -> Self:
        """Open all parts of a bundle. BundleError if one is damaged or doesn't fit, JavaError if Java can't start.

        `metrics` are those of the process, which tell of this engine from `publish` on; None: of its own, at once.
        Unless its files were `hashed` already, or need not be, they are before an index is opened.
        """
        settings = settings or Settings()
        parts = Parts.open(bundle, settings, hashed=hashed)
        try:
            return cls(bundle, settings, parts, metrics)
        except BaseException:
            parts.close()
            raise

    @property
    def fields(self) -> list[str]:
        """Names of the document fields that a request may ask for."""
        return self.parts.documents.fields

    def publish(self) -> None:
        """Let the metrics tell the state of this engine."""
        lanes = self.parts.executor.lanes
        self.metrics.describe(self.bundle.manifest, self.parts.backends(), self._ready, lanes)

    def search(
        self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> SearchResponse:
        """Answer one search. `arrived` is the `perf_counter` time its deadline counts from, default now; `marks` gets
        the times of its stages.

        InvalidRequestError for a request out of limits, NoTokensError and NoDirectionError for a query that can't be
        encoded, DeadlineError and SearchFailedError where there is no answer to give.
        """
        self._require_open()
        return SearchResponse.model_validate(self.operations.search(request, arrived=arrived, marks=marks))

    def search_batch(
        self,
        requests: Sequence[SearchRequest],
        *,
        arrived: float | None = None,
        marks: list[Mark] | None = None,
    ) -> list[SearchResponse]:
        """Answer several searches, in their order. Errors as in `search`.

        The batch is answered as a whole: an error of one search, which it names, is the error of all.
        """
        calls = [self.submit(search) for search in self.operations.batch(requests, arrived=arrived, marks=marks)]
        try:
            return [SearchResponse.model_validate(call.future.result()) for call in calls]
        finally:
            for call in calls:
                call.future.cancel()

    def encode(
        self, request: EncodeRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> EncodeResponse:
        """Encode a text as a query. Errors as in `search`."""
        self._require_open()
        return self.operations.encode(request, arrived=arrived, marks=marks)

    def document(self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None) -> Document:
        """Read a document. DocumentNotFoundError, DeadlineError, SearchFailedError."""
        self._require_open()
        return self.operations.document(document_id, arrived=arrived, marks=marks)

    def terms(
        self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> DocumentTerms:
        """Give what the sparse side has of a document, by descending impact. Errors as in `document`."""
        self._require_open()
        return self.operations.terms(document_id, arrived=arrived, marks=marks)

    def submit(self, work: Callable[[], T]) -> Call[T]:
        """Let one of the threads for requests do some work when its turn comes.

        NotReadyError if the engine is closed, or if work that does not end holds all threads.
        """
        self._require_open()
        call = self.parts.executor.lanes[REQUESTS].submit(work)
        if call is None:
            raise NotReadyError("Requests that don't end hold all threads. Try again later.")
        return call

    def warm_up(self, stop: Event | None = None, share: float = 1.0) -> None:
        """Search with words of the documents, sometimes by BM25 if there is, until the JVM is fast; the engine is ready
        when the legs answered.

        Ends after `warm_up_queries` searches or `warm_up_s` seconds, whichever comes first, and searches for no more
        than a `share` of the time; when `stop` is set it ends at once, and the engine is not ready. A second time does
        nothing. SearchFailedError or DeadlineError if a leg did not answer one of these searches.
        """
        self._require_open()
        if self._warm:
            return
        probes = self.parts.documents.probes(_PROBES) or [self.bundle.manifest.name]
        until = perf_counter() + self.settings.warm_up_s
        stop = stop or Event()
        for number in range(self.settings.warm_up_queries):
            if stop.is_set():
                return
            begun = perf_counter()
            if number and begun >= until:
                break
            self._require_open()
            mode: Mode = "bm25" if number % _BM25_EVERY == 1 and "bm25" in self.modes else "hybrid"
            request = SearchRequest(query=probes[number % len(probes)], mode=mode, allow_partial=False, k=1)
            self.operations.probe(request, _WARM_UP_DEADLINE_MS)
            if share < 1.0:
                stop.wait((perf_counter() - begun) * (1.0 / share - 1.0))
        trim_heap()
        self._warm = not stop.is_set()

    def require_ready(self) -> None:
        """Raise NotReadyError unless the engine is warm, open, and no lane is stuck."""
        self._require_open()
        if not self._warm:
            raise NotReadyError("The service warms up. Try again in a moment.")
        if stuck := self.parts.executor.stuck:
            raise NotReadyError(f"Calls that don't end hold all threads of: {', '.join(stuck)}.")

    def close(self) -> None:
        """Finish the requests that were begun, and close the backends; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self.parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self) -> float:
        try:
            self.require_ready()
        except NotReadyError:
            return 0.0
        return 1.0

    def _require_open(self) -> None:
        if self._closed:
            raise NotReadyError("The engine is closed.")
