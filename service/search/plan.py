"""What a search is made of, and what it is to do with every default filled in."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self, get_args

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.bm25 import WordSearch
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.service.backends.legs import DenseLeg, Leg, SparseLeg, WordLeg
from lightretriever.service.execution.lanes import Lane
from lightretriever.service.schemas import LegName, Mode, SearchRequest, Weights
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.filters import Filters
from lightretriever.service.settings import Settings

__all__ = ["Parts", "Plan", "fusion_weights", "modes_of"]

_PAPER_WEIGHTS: Final = Weights(dense=0.7, sparse=0.3)


def fusion_weights(manifest: Manifest) -> Weights:
    """The weights of a linear fusion that names none: those of the bundle, else the paper's."""
    return _PAPER_WEIGHTS if manifest.fusion is None else Weights(**manifest.fusion.model_dump())


def modes_of(manifest: Manifest) -> list[Mode]:
    """The modes in which a bundle can be searched."""
    return [mode for mode in get_args(Mode) if mode != "bm25" or manifest.sparse.words]


@dataclass(frozen=True, slots=True)
class Parts:
    """What searches are made of, over one open Lucene index. Lanes are named like the legs, and "documents"."""

    encoder: QueryEncoder
    legs: dict[LegName, Leg]
    documents: Documents
    filters: Filters
    lanes: Mapping[str, Lane]
    index: ImpactIndex

    @classmethod
    def open(cls, bundle: Bundle, settings: Settings, *, hashed: bool = True) -> Self:
        """Open what searches in a bundle are made of. BundleError, JavaError.

        Unless its files were `hashed` already, that is done before an index is opened.
        """
        # Reading the vocabulary is Python's work; Java starts, opens its index and reads a sample of it meanwhile.
        with ThreadPoolExecutor(2) as threads:
            encoder = threads.submit(_encoder, bundle)
            if not hashed:
                read = threads.submit(bundle.check_hashes)
                start_jvm()
                read.result()
            index = bundle.sparse()
            try:
                return cls._of(bundle, settings, index, encoder)
            except BaseException:
                index.close()
                raise

    @classmethod
    def _of(cls, bundle: Bundle, settings: Settings, index: ImpactIndex, encoder: Future[QueryEncoder]) -> Self:
        manifest, patience = bundle.manifest, settings.deadline_ms / 1e3
        documents = Documents(index)
        legs: dict[LegName, Leg] = {"dense": DenseLeg(bundle.dense()), "sparse": SparseLeg(index)}
        if manifest.sparse.words:
            legs["bm25"] = WordLeg(WordSearch(index))
        lanes = (*get_args(LegName), "documents")
        return cls(
            encoder=encoder.result(),
            legs=legs,
            documents=documents,
            filters=Filters(index),
            lanes={name: Lane(name, settings.threads(), patience=patience) for name in lanes},
            index=index,
        )

    def close(self) -> None:
        """Close the index."""
        self.index.close()


def _encoder(bundle: Bundle) -> QueryEncoder:
    return QueryEncoder(bundle.tokenizer(), {task: bundle.table(task) for task in bundle.manifest.tasks}, bundle.idf())


@dataclass(frozen=True, slots=True)
class Plan:
    """A search whose defaults are filled in: name of the task, weights of the legs, candidates per leg, milliseconds
    from the arrival, and the filter's condition as the index reads it."""

    request: SearchRequest
    task: str
    weights: Weights
    candidates: int
    deadline_ms: float
    condition: tuple[str, ...] | None

    def legs(self) -> dict[LegName, float]:
        """Give the legs to search with their weights; a leg of weight 0 is not searched."""
        if self.request.mode != "hybrid":
            return {self.request.mode: 1.0}
        both: dict[LegName, float] = {"dense": self.weights.dense, "sparse": self.weights.sparse}
        return {leg: weight for leg, weight in both.items() if weight > 0}
