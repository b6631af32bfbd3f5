"""The search engine: encode, search both legs at once, fuse, fetch. Knows nothing of HTTP; use it in any process.

with SearchEngine.open(Bundle.open(path)) as engine:
    engine.search(SearchRequest(query="play music"))
"""

from collections.abc import Sequence
from functools import partial
from threading import Event
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import NotReadyError
from lightretriever.service.execution.crew import Crew
from lightretriever.service.execution.jobs import Job, Jobs, Steps
from lightretriever.service.execution.memory import give_back
from lightretriever.service.execution.waiting import Done
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
from lightretriever.service.search.operations import Errands
from lightretriever.service.search.plan import Parts, modes_of
from lightretriever.service.settings import Settings

__all__ = ["SearchEngine"]

_WARM_UP_DEADLINE_MS: Final = 5_000.0
_BM25_EVERY: Final = 10  # searches of the warm-up
_THREADS: Final = "request"
_PROBES: Final = 500  # different searches of the warm-up
T = TypeVar("T")


class SearchEngine:
    """Searches one bundle. Any number of threads may use it at once."""

    def __init__(self, bundle: Bundle, settings: Settings, parts: Parts, metrics: Metrics | None = None) -> None:
        """Use `open` instead, which opens the parts. They are the engine's from now on."""
        self.bundle = bundle
        self.settings = settings
        self.metrics = metrics or Metrics()
        self._parts = parts
        self.modes = modes_of(bundle.manifest)
        """Modes in which the bundle can be searched."""
        self.errands = Errands(bundle.manifest, settings, parts, self.metrics)
        """What can be asked for, as steps for `begin`."""
        self.fusion_weights = self.errands.fusion_weights
        """Weights of a linear fusion that names none."""
        self._jobs = Jobs(_THREADS, settings.threads())
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
    def parts(self) -> Parts:
        """What searches are made of. Others can only be given at the beginning."""
        return self._parts

    @property
    def crew(self) -> Crew:
        """The threads that work on requests."""
        return self._jobs.crew

    @property
    def fields(self) -> list[str]:
        """Names of the document fields that a request may ask for."""
        return self.parts.documents.fields

    def publish(self) -> None:
        """Let the metrics tell the state of this engine."""
        lanes = self.parts.lanes.items()
        abandoned = {name: partial(getattr, lane, "abandoned") for name, lane in lanes}
        self.metrics.describe(self.bundle.manifest, self._ready, abandoned)

    def search(
        self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> SearchResponse:
        """Answer one search. `arrived` is the `perf_counter` time its deadline counts from, default now; `marks` gets
        the times of its stages.

        InvalidRequestError for a request out of limits, NoTokensError and NoDirectionError for a query that can't be
        encoded, DeadlineError and SearchFailedError where there is no answer to give.
        """
        return SearchResponse.model_validate(self._do(self.errands.search(request, arrived=arrived, marks=marks)))

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
        self._require_open()
        answers = self._jobs.do_all(self.errands.search_batch(requests, arrived=arrived, marks=marks))
        return list(map(SearchResponse.model_validate, answers))

    def encode(
        self, request: EncodeRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> EncodeResponse:
        """Encode a text as a query. Errors as in `search`."""
        return self._do(self.errands.encode(request, arrived=arrived, marks=marks))

    def document(self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None) -> Document:
        """Read a document. DocumentNotFoundError, DeadlineError, SearchFailedError."""
        return self._do(self.errands.document(document_id, arrived=arrived, marks=marks))

    def terms(
        self, document_id: str, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> DocumentTerms:
        """Give what the sparse side has of a document, by descending impact. Errors as in `document`."""
        return self._do(self.errands.terms(document_id, arrived=arrived, marks=marks))

    def begin(self, steps: Steps[Any], done: Done) -> list[Job[Any]]:
        """Begin what `errands` describes, without waiting: `done` gets its value or error in some thread."""
        self._require_open()
        return [self._jobs.begin(steps, done)]

    def begin_all(self, works: Sequence[Steps[Any]], done: Done) -> list[Job[Any]]:
        """Begin several, which end as one: `done` gets the list of their values, or the first one's error."""
        self._require_open()
        return self._jobs.begin_all(works, done)

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
            self._do(self.errands.probe(request, _WARM_UP_DEADLINE_MS))
            if share < 1.0:
                stop.wait((perf_counter() - begun) * (1.0 / share - 1.0))
        give_back()
        self._warm = not stop.is_set()

    def require_ready(self) -> None:
        """Raise NotReadyError unless the engine is warm, open, and no lane is stuck."""
        self._require_open()
        if not self._warm:
            raise NotReadyError("The service warms up. Try again in a moment.")
        stuck = [name for name, lane in self.parts.lanes.items() if lane.stuck]
        if stuck:
            raise NotReadyError(f"All places are held by calls that don't end, in: {', '.join(stuck)}.")

    def close(self) -> None:
        """Finish what was begun, end the threads and close the index; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self._jobs.close()
        self.parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, steps: Steps[T]) -> T:
        self._require_open()
        return self._jobs.do(steps)

    def _ready(self) -> float:
        try:
            self.require_ready()
        except NotReadyError:
            return 0.0
        return 1.0

    def _require_open(self) -> None:
        if self._closed:
            raise NotReadyError("The engine is closed.")
