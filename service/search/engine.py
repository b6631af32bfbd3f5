"""The search engine: encode, search the legs, fuse, fetch. Independent of HTTP.

with SearchEngine.open(Bundle.open(path)) as engine:
    engine.search(SearchRequest(query="play music"))
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Final, Self, TypeVar, get_args

from lightretriever.artifacts.bundle.manifest import FusionInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import importing
from lightretriever.service import errors, schemas
from lightretriever.service.backends.base import Backends
from lightretriever.service.backends.local import open_local
from lightretriever.service.execution.executor import Call, Executor
from lightretriever.service.observability.metrics import EngineState, Metrics, Stage, StageClock
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.explain import list_terms_of, list_tokens
from lightretriever.service.search.pipeline import search
from lightretriever.service.search.ranking import RERANK, Reranker
from lightretriever.service.search.request import Plan, RequestReader, SearchContext, literal, read_operators
from lightretriever.service.search.rules import RulesFile
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.later import LaterDocuments

REQUESTS: Final = "requests"
"""The lane for whole requests. The others are for calls that can't be interrupted, or that wait."""

WRITES: Final = "writes"
"""The lane for reading and writing documents that change, which may wait for other processes and for the disk."""

ENCODE_DOCUMENT: Final = "encode_document"
"""The lane of the model that encodes written documents. It has one thread, so the model reads one at a time."""

_log = logging.getLogger(__name__)
_MIN_WRITES: Final = 4  # threads, which write to the disk together
_EXAMPLES: Final = 3
_PROBES: Final = 500  # different searches to warm up with
_WARM_UP_DEADLINE_MS: Final = 5_000.0
_LATE: Final = 3
_NOT_NEEDED: Final = (RERANK, ENCODE_DOCUMENT, WRITES)  # lanes that searches can do without
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that searches use: query encoder, backends, documents, the executor of calls that can't be
    interrupted, and if there are such, the reranking model, the model that encodes written documents, the rules, and
    the background (b, D) float32 that tells how good a score of the dense leg is."""

    encoder: QueryEncoder
    backends: Backends
    documents: Documents
    executor: Executor
    reranker: Reranker | None
    document_encoder: "LaterDocuments | None" = None
    rules: RulesFile | None = None
    background: Float32Array | None = None

    @classmethod
    def open(cls, bundle: Bundle, settings: Settings, rules: RulesFile | None = None) -> Self:
        """Open the parts of a bundle. BundleError, JavaError, and on a cluster ClusterError. With a recipe, whose model
        encodes written documents: MissingExtraError without the pipeline, RecipeError and ModelError if there is no
        such model, ResumeError if the bundle was made with another one."""
        reranker = None if settings.rerank_url is None else Reranker(settings.rerank_url, settings)
        patience_s = settings.deadline_ms / 1e3
        executor = Executor()
        for lane in (REQUESTS,) if reranker is None else (REQUESTS, RERANK):
            executor.add(lane, settings.threads(), patience_s=patience_s)
        with ThreadPoolExecutor(1) as thread:  # reads the vocabulary while the indexes open
            encoder, later = thread.submit(_encoder, bundle), None
            if settings.backend == "local":
                backends: Backends = open_local(bundle, settings, executor)
            else:
                with importing("cluster"):
                    from lightretriever.service.backends.opensearch import open_cluster
                backends = open_cluster(bundle, settings)
            try:
                if backends.live is not None:
                    executor.add(WRITES, max(_MIN_WRITES, settings.threads()), patience_s=patience_s)
                    if settings.recipe is not None:
                        with importing("pipeline"):
                            from lightretriever.artifacts.pipeline.later import LaterDocuments
                            from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
                        recipe = read_recipe(settings.recipe, Recipe)
                        later = LaterDocuments.open(recipe, bundle.manifest, backends.live.most_impact)
                        executor.add(ENCODE_DOCUMENT, 1, patience_s=settings.encode_timeout_s)
                return cls(
                    encoder=encoder.result(),
                    backends=backends,
                    documents=Documents(backends.documents, bundle.manifest.field_names),
                    executor=executor,
                    reranker=reranker,
                    document_encoder=later,
                    rules=rules,
                    background=bundle.background(),
                )
            except BaseException:
                backends.close()
                raise

    def over(self, backends: Backends) -> Self:
        """Return the same parts with the backends of other documents."""
        return replace(self, backends=backends, documents=Documents(backends.documents, self.documents.fields))

    @property
    def index(self) -> str | None:
        """The cluster's index that is searched; None on this machine."""
        return None if self.backends.cluster is None else self.backends.cluster.index

    def close(self) -> None:
        """Refuse calls and close the backends. Running calls end in their threads."""
        self.executor.close()
        self.backends.close()


def _encoder(bundle: Bundle) -> QueryEncoder:
    tasks = bundle.manifest.tasks
    tables = {} if bundle.manifest.dense is None else {task: bundle.table(task) for task in tasks}
    heads = {task: head for task in tasks if (head := bundle.head(task)) is not None}
    tokenizer = bundle.tokenizer()
    return QueryEncoder(tokenizer, tables, bundle.vocabulary(tokenizer), bundle.idf(), heads)


class SearchEngine:
    """Searches one bundle. Thread-safe. `clock` times the stages; the deadline starts at its `arrived`, default now."""

    def __init__(self, bundle: Bundle, settings: Settings, parts: Parts, metrics: Metrics | None = None) -> None:
        """Use `open` instead. The engine closes `parts`."""
        self.bundle = bundle
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.parts = parts
        """The parts, with the documents as they were when `now` was called last."""
        manifest = bundle.manifest
        fusion = manifest.fusion or FusionInfo(dense=0.7, sparse=0.3)  # the paper's
        if manifest.dense is None:
            fusion = FusionInfo(dense=0.0, sparse=1.0, feedback=0.0)
        self.reader = RequestReader(
            settings,
            tasks={name: task.match for name, task in manifest.tasks.items()},
            default_task=manifest.default_task,
            filters=manifest.fields,
            fields=parts.documents.fields,
            modes=[mode for mode in get_args(schemas.Mode) if mode != "dense" or manifest.dense is not None],
            weights=schemas.Weights(dense=fusion.dense, sparse=fusion.sparse),
            feedback=fusion.feedback,
            normalization="range" if parts.background is None else "evidence",
            spells=parts.backends.spellings is not None,
            reranks=parts.reranker is not None,
            phrases=manifest.sparse.phrases if parts.backends.cluster is None else None,
        )
        """Checks requests, and has the defaults of what they leave open."""
        examples = list(filter(self._can_search, manifest.examples))
        self.examples = examples or parts.documents.examples(_EXAMPLES, self._can_search)
        """Queries to try: those of the recipe, or else titles of documents."""
        documents = parts.backends.name
        self._stage_backends: dict[Stage, str] = dict(parts.backends.legs.items())
        self._stage_backends |= {"filter": documents, "rank": documents, "fetch": documents, "facets": documents}
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
        rules: RulesFile | None = None,
    ) -> Self:
        """Open all parts of a bundle. BundleError if one is damaged or doesn't fit, JavaError if Java can't start,
        ClusterError if its cluster can't be used.

        `metrics` are the process's; call `publish` to make them describe this engine. None: the engine has its own.
        `rules` are those of the collection. None: those of the settings' file, if there is one, and SettingsError if it
        can't be used. `Bundle.check_hashes` checks the files.
        """
        settings = settings or Settings()
        if rules is None and settings.rules is not None:
            rules = RulesFile(settings.rules)
        parts = Parts.open(bundle, settings, rules)
        try:
            return cls(bundle, settings, parts, metrics)
        except BaseException:
            parts.close()
            raise

    def publish(self, collection: str = "default") -> None:
        """Make the metrics describe this engine as that of a collection."""
        self.metrics.describe(collection, self.bundle.manifest, self._state)

    def now(self) -> Parts:
        """Return the parts with the documents as they are now, for a search to use to its end."""
        backends = self.parts.backends.now()
        if backends is not self.parts.backends:
            self.parts = self.parts.over(backends)
        return self.parts

    def search(self, request: schemas.SearchRequest, clock: StageClock | None = None) -> schemas.SearchResponse:
        """Answer one search."""
        return schemas.SearchResponse.model_validate(self.answer(request, clock))

    def answer(self, request: schemas.SearchRequest, clock: StageClock | None = None) -> schemas.Plain:
        """Answer one search, as `SearchResponse` in plain dictionaries. InvalidRequestError for a request out of
        limits, and errors as in `pipeline.search`."""
        self._require_open()
        return self._answer(self.reader.read_search(request), clock or StageClock())

    def batch(
        self, requests: Sequence[schemas.SearchRequest], clock: StageClock | None = None
    ) -> list[Callable[[], schemas.Plain]]:
        """Check several searches, and give for each a function that answers it as `answer` does. Errors name the
        search."""
        self._require_open()
        clock = clock or StageClock()
        return [
            partial(self._of_batch, number, plan, StageClock(clock.arrived, clock.marks))
            for number, plan in enumerate(self.reader.read_batch(requests))
        ]

    def encode(self, request: schemas.EncodeRequest, clock: StageClock | None = None) -> schemas.EncodeResponse:
        """Encode a text as a query."""
        self._require_open()
        self.reader.check_encode(request)
        clock = clock or StageClock()
        self._require_time(clock)
        encoder, task = self.parts.encoder, request.task or self.bundle.manifest.default_task
        query = encoder.encode(request.text, task, clock, dense=bool(encoder.tables), field="text")
        dense = [] if query.dense is None else query.dense.tolist()
        facts = {"task": task, "dimension": len(dense), "dense": dense, "timings_ms": clock.milliseconds()}
        head = query.head if task in encoder.heads else None
        terms, tokens = list_terms_of(query, encoder), list_tokens(query, encoder)
        return schemas.EncodeResponse.model_validate({**facts, "terms": terms, "tokens": tokens, "head_query": head})

    def document(self, document_id: str, clock: StageClock | None = None) -> schemas.Document:
        """Read a document. DocumentNotFoundError if none has this id."""
        fields = self._read(self.now().documents.get, document_id, clock or StageClock())
        return schemas.Document(id=document_id, fields=fields)

    def terms(self, document_id: str, clock: StageClock | None = None) -> schemas.DocumentTerms:
        """Return the terms of a document in the sparse index, by descending impact. Errors as in `document`."""
        read = partial(self.now().documents.terms, vocabulary=self.parts.encoder.vocabulary)
        return self._read(read, document_id, clock or StageClock())

    def submit(self, work: Callable[[], T], lane: str = REQUESTS) -> Call[T]:
        """Queue work for a thread of a lane. NotReadyError if the engine is closed or stuck work holds all threads."""
        self._require_open()
        call = self.parts.executor.lanes[lane].submit(work)
        if call is None:
            raise errors.NotReadyError("Requests that don't end hold all threads. Try again later.")
        return call

    def warm_up(self, stop: Event | None = None, share: float = 1.0) -> None:
        """Search until the JVM has compiled its hot code, then mark the engine ready. Idempotent.

        Makes up to `warm_up_queries` searches, with words of the documents, or searches for a second, and for no more
        than a `share` of the time. If `stop` is set, it ends at once and the engine is not ready. SearchFailedError if
        a leg did not answer, DeadlineError if it was late for three searches.
        """
        self._require_open()
        if self._warm:
            return
        settings, stop = self.settings, stop or Event()
        texts = self.parts.documents.probes(_PROBES)
        deadline = perf_counter() + settings.warm_up_s
        answered = late = 0
        for query in cycle(filter(self._can_search, map(literal, [*texts, self.bundle.manifest.name]))):
            begun = perf_counter()
            if stop.is_set() or answered >= settings.warm_up_queries or (answered and begun >= deadline):
                break
            request = schemas.SearchRequest(query=query, allow_partial=False, k=1, rerank=False)
            plan = replace(self.reader.read_search(request), deadline_ms=_WARM_UP_DEADLINE_MS)
            try:
                search(SearchContext(self.now(), plan, StageClock()))
                answered += 1
            except errors.DeadlineError:  # on a machine that is busy now, the next may come in time
                late += 1
                if late == _LATE:
                    raise
            if share < 1.0:
                stop.wait((perf_counter() - begun) * (1.0 / share - 1.0))
        self._warm = not stop.is_set()

    def require_ready(self) -> None:
        """Raise NotReadyError unless the engine is warm and open, no lane is stuck, the cluster answered the last
        time, if it has one, and the journal can be followed, if it has one."""
        self._require_open()
        if not self._warm:
            raise errors.NotReadyError("The service warms up. Try again in a moment.")
        if problem := self.parts.backends.problem:
            raise errors.NotReadyError(problem)
        if stuck := [name for name in self.parts.executor.stuck if name not in _NOT_NEEDED]:
            raise errors.NotReadyError(f"Calls that don't end hold all threads of: {', '.join(stuck)}.")

    def close(self) -> None:
        """Finish the running requests and close the backends. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _state(self) -> EngineState:
        live, rules = self.parts.backends.live, self.parts.rules
        refused, written = rules is not None and rules.problem is not None, 0 if live is None else live.written
        return EngineState(self.bundle.manifest.documents, written, refused, self.ready, self.parts.executor.lanes)

    def _can_search(self, text: str) -> bool:
        return (
            len(text) < self.settings.max_query_chars
            and not read_operators(text).excluded
            and self.parts.encoder.can_encode(text, self.bundle.manifest.default_task)
        )

    def _answer(self, plan: Plan, clock: StageClock) -> schemas.Plain:
        context = SearchContext(self.now(), plan, clock)
        try:
            answer = search(context)
            for leg, reason in context.missing.items():
                self.metrics.degraded.labels(leg, reason).inc()
            return answer
        finally:
            self.metrics.observe(clock, self._stage_backends)
            for leg, reason in context.unscored.items():
                self.metrics.unscored.labels(leg, reason).inc()
                fields = {"leg": leg, "backend": context.parts.backends.legs[leg], "reason": reason}
                _log.warning("candidates not scored", extra=fields)

    def _of_batch(self, number: int, plan: Plan, clock: StageClock) -> schemas.Plain:
        try:
            return self._answer(plan, clock)
        except errors.ServiceError as error:
            raise error.within(f"searches.{number}") from error

    def _read(self, read: Callable[[str], T | None], document_id: str, clock: StageClock) -> T:
        self._require_open()
        self._require_time(clock)
        with clock.measure("fetch"), self.parts.backends.within(clock.arrived + self.settings.deadline_ms / 1e3):
            result = read(document_id)
        if result is None:
            raise errors.DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
        return result

    def _require_time(self, clock: StageClock) -> None:
        if perf_counter() >= clock.arrived + self.settings.deadline_ms / 1e3:
            raise errors.DeadlineError(f"The turn of the request did not come within {self.settings.deadline_ms:g} ms.")

    @property
    def ready(self) -> bool:
        """True if `require_ready` raises nothing."""
        try:
            self.require_ready()
        except errors.NotReadyError:
            return False
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise errors.NotReadyError("The engine is closed.")
