"""What a search is made of, and what it is to do with every default filled in."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self, get_args

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.backends.base import Leg
from lightretriever.service.backends.local import Backends
from lightretriever.service.execution.executor import Executor
from lightretriever.service.observability.metrics import Stage
from lightretriever.service.schemas import LegName, Mode, SearchRequest, Weights
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.filters import Filters
from lightretriever.service.settings import Settings

__all__ = ["REQUESTS", "Parts", "Plan", "fusion_weights", "modes_of"]

REQUESTS: Final = "requests"
"""The lane in which whole requests run; the other lanes are named like the legs, whose searches they run."""

_PAPER_WEIGHTS: Final = Weights(dense=0.7, sparse=0.3)


def fusion_weights(manifest: Manifest) -> Weights:
    """The weights of a linear fusion that names none: those of the bundle, else the paper's."""
    return _PAPER_WEIGHTS if manifest.fusion is None else Weights(**manifest.fusion.model_dump())


def modes_of(manifest: Manifest) -> list[Mode]:
    """The modes in which a bundle can be searched."""
    return [mode for mode in get_args(Mode) if mode != "bm25" or manifest.sparse.words]


@dataclass(frozen=True, slots=True)
class Parts:
    """What searches are made of: the query encoder, the legs and documents in their backends, and the executor that
    makes the calls into them."""

    encoder: QueryEncoder
    legs: dict[LegName, Leg]
    documents: Documents
    filters: Filters
    executor: Executor

    @classmethod
    def open(cls, bundle: Bundle, settings: Settings, *, hashed: bool = True) -> Self:
        """Open what searches in a bundle are made of. BundleError, JavaError.

        Unless its files were `hashed` already, they are hashed before an index is opened.
        """
        with ThreadPoolExecutor(1) as thread:  # reads the vocabulary while the indexes open
            encoder = thread.submit(_encoder, bundle)
            backends = Backends.open(bundle, hashed=hashed)
            try:
                return cls(
                    encoder=encoder.result(),
                    legs=backends.legs,
                    documents=Documents(backends.documents, bundle.manifest.field_names),
                    filters=Filters(backends.documents),
                    executor=Executor(
                        [REQUESTS, *backends.legs], settings.threads(), patience_s=settings.deadline_ms / 1e3
                    ),
                )
            except BaseException:
                backends.close()
                raise

    def backends(self) -> dict[Stage, str]:
        """The backend of each stage that has one."""
        documents = self.documents.store.backend
        legs: dict[Stage, str] = {name: leg.backend for name, leg in self.legs.items()}
        return {**legs, "filter": documents, "fetch": documents, "facets": documents}

    def close(self) -> None:
        """Refuse calls and close the backends. Calls that still run end in their threads."""
        self.executor.close()
        Backends(self.legs, self.documents.store).close()


def _encoder(bundle: Bundle) -> QueryEncoder:
    return QueryEncoder(bundle.tokenizer(), {task: bundle.table(task) for task in bundle.manifest.tasks}, bundle.idf())


@dataclass(frozen=True, slots=True)
class Plan:
    """A search whose defaults are filled in: name of the task, weights of the legs, candidates per leg, milliseconds
    from the arrival, the most hits times tokens to explain, and the filter's condition as the backends read it."""

    request: SearchRequest
    task: str
    weights: Weights
    candidates: int
    deadline_ms: float
    max_explained: int
    condition: tuple[str, ...] | None

    def legs(self) -> dict[LegName, float]:
        """Give the legs to search with their weights; a leg of weight 0 is not searched."""
        if self.request.mode != "hybrid":
            return {self.request.mode: 1.0}
        both: dict[LegName, float] = {"dense": self.weights.dense, "sparse": self.weights.sparse}
        return {leg: weight for leg, weight in both.items() if weight > 0}
