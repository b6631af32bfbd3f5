"""The parts of a served bundle, opened and closed together."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import importing
from lightretriever.service.backends.base import Backends
from lightretriever.service.backends.local import open_local
from lightretriever.service.execution.executor import Executor
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.ranking import RERANK, Reranker
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

_MIN_WRITES: Final = 4  # threads, which write to the disk together


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
