"""The parts that searches use, and the plan of one search, with every default filled in."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Self, cast

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.bundle.parts import MatchThresholds
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.artifacts.errors import MissingExtraError
from lightretriever.service.backends.base import Backends, DenseLeg, Leg, LegGroup, Spellings
from lightretriever.service.backends.local import open_local
from lightretriever.service.backends.lucene import LuceneSparse
from lightretriever.service.execution.executor import Executor
from lightretriever.service.observability.metrics import Stage
from lightretriever.service.schemas import LegName, SearchRequest, Weights
from lightretriever.service.search.document_encoder import ENCODE_DOCUMENT, DocumentEncoder
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.filters import Filters, read_filter
from lightretriever.service.search.request import candidates_of, reranks
from lightretriever.service.search.rerank import RERANK, Reranker
from lightretriever.service.settings import Settings

__all__ = ["REQUESTS", "Parts", "Plan"]

REQUESTS: Final = "requests"
"""The lane for whole requests; each other lane has the name of the leg whose searches it runs."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that searches use: query encoder, legs, documents, filters, the executor that calls the legs, the
    reranking model, if there is one, on a cluster the group that searches the legs in one trip, and the model that
    encodes written documents, if there is one, and on this machine how the documents spell their words, if that is
    indexed."""

    encoder: QueryEncoder
    legs: dict[LegName, Leg]
    documents: Documents
    filters: Filters
    executor: Executor
    reranker: Reranker | None
    group: LegGroup | None = None
    spellings: Spellings | None = None
    document_encoder: DocumentEncoder | None = None

    @classmethod
    def open(cls, bundle: Bundle, settings: Settings, *, hashed: bool = True) -> Self:
        """Open the parts of a bundle. BundleError, JavaError, and on a cluster ClusterError, and what
        `DocumentEncoder.open` raises if the settings name a recipe.

        Unless `hashed`, checks the files' hashes before it opens an index.
        """
        with ThreadPoolExecutor(1) as thread:  # reads the vocabulary while the indexes open
            encoder = thread.submit(_encoder, bundle)
            backends = _backends(bundle, settings, hashed=hashed)
            legs = list(backends.legs) if backends.group is None else [backends.group.name]
            reranker = Reranker.of(settings)
            lanes = [REQUESTS, *legs, *([] if reranker is None else [RERANK])]
            try:
                written = _document_encoder(bundle, settings, backends.group)
                executor = Executor(lanes, settings.threads(), patience_s=settings.deadline_ms / 1e3)
                if written is not None:
                    executor.add(ENCODE_DOCUMENT, 1, patience_s=settings.encode_timeout_s)
                return cls(
                    encoder=encoder.result(),
                    legs=backends.legs,
                    documents=Documents(backends.documents, bundle.manifest.field_names),
                    filters=Filters(backends.documents),
                    executor=executor,
                    reranker=reranker,
                    group=backends.group,
                    spellings=backends.spellings,
                    document_encoder=written,
                )
            except BaseException:
                backends.close()
                raise

    @property
    def dense(self) -> DenseLeg:
        """The dense leg of a bundle that has one."""
        return cast(DenseLeg, self.legs["dense"])

    def backends(self) -> dict[Stage, str]:
        """Give the backend of each stage that has one."""
        documents = LuceneSparse.backend if self.group is None else self.group.name
        legs: dict[Stage, str] = {name: leg.backend for name, leg in self.legs.items()}
        return {**legs, "filter": documents, "rank": documents, "fetch": documents, "facets": documents}

    @property
    def index(self) -> str | None:
        """The cluster's index that is searched; None on this machine."""
        return None if self.group is None else self.group.place.index

    def within(self, until: float) -> AbstractContextManager[None]:
        """End by the `perf_counter` time `until` what this thread asks of a cluster in the block, if there is one."""
        return nullcontext() if self.group is None else self.group.within(until)

    def close(self) -> None:
        """Refuse calls and close the backends. Running calls end in their threads."""
        self.executor.close()
        Backends(self.legs, self.documents.store).close()


def _backends(bundle: Bundle, settings: Settings, *, hashed: bool) -> Backends:
    if settings.backend == "local":
        return open_local(bundle, hashed=hashed)
    try:
        from lightretriever.service.backends.opensearch import open_cluster
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error, "cluster") from error
    if not hashed:
        bundle.check_hashes()
    return open_cluster(bundle, settings)


def _document_encoder(bundle: Bundle, settings: Settings, group: LegGroup | None) -> DocumentEncoder | None:
    if settings.recipe is None or group is None:
        return None
    return DocumentEncoder.open(settings.recipe, bundle.manifest, group.meta)


def _encoder(bundle: Bundle) -> QueryEncoder:
    tasks = bundle.manifest.tasks
    tables = {} if bundle.manifest.dense is None else {task: bundle.table(task) for task in tasks}
    heads = {task: head for task in tasks if (head := bundle.head(task)) is not None}
    tokenizer = bundle.tokenizer()
    return QueryEncoder(tokenizer, tables, bundle.vocabulary(tokenizer), bundle.idf(), heads)


@dataclass(frozen=True, slots=True)
class Plan:
    """A search whose defaults are filled in: name of the task, weights of the legs, candidates per leg, milliseconds
    from the arrival, the most hits times tokens to explain, the filter's condition as the backends read it, the
    kinds of the declared fields, whether the reranking model is asked, and the task's thresholds of a match, if any."""

    request: SearchRequest
    task: str
    weights: Weights
    candidates: int
    deadline_ms: float
    max_explained: int
    condition: tuple[str, ...] | None
    kinds: Mapping[str, FieldKind]
    rerank: bool
    thresholds: MatchThresholds | None = None

    @classmethod
    def of(
        cls,
        request: SearchRequest,
        settings: Settings,
        manifest: Manifest,
        weights: Weights,
        max_explained: int,
        *,
        rerank: bool,
    ) -> Self:
        """Fill in what a request leaves open. `weights` are the default ones; `rerank`: there is a reranking model."""
        task = manifest.default_task if request.task is None else request.task
        weights = request.fusion.weights or weights
        return cls(
            request,
            task=task,
            weights=weights if manifest.dense is not None else weights.model_copy(update={"dense": 0.0}),
            condition=None if request.filter is None else read_filter(request.filter, manifest.fields)[0],
            candidates=candidates_of(request, settings),
            deadline_ms=settings.deadline_ms if request.deadline_ms is None else request.deadline_ms,
            max_explained=max_explained,
            kinds=manifest.fields,
            rerank=rerank and reranks(request),
            thresholds=None if request.terms else manifest.tasks[task].match,
        )

    def legs(self) -> dict[LegName, float]:
        """Give the weights of the legs to search, which excludes weight 0."""
        if self.request.mode != "hybrid":
            return {self.request.mode: 1.0}
        weights: dict[LegName, float] = {
            "dense": self.weights.dense,
            "sparse": self.weights.sparse,
        }
        return {leg: weight for leg, weight in weights.items() if weight > 0}
