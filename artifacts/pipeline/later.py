"""Documents that come after a bundle was built, encoded as the bundle's own were."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from lightretriever.artifacts.bundle.batches import EncodedBatch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import DocumentError
from lightretriever.artifacts.files.workdir import check_same, work_lock
from lightretriever.artifacts.live.documents import Encoded, read_impacts
from lightretriever.artifacts.pipeline.build import sparse_leg
from lightretriever.artifacts.pipeline.encode import model_rows
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.stages import load_recipe_encoders
from lightretriever.artifacts.pipeline.terms import TermImpacts, encoded_batch

_OF_IMPACTS: Final = ("vocabulary", "language", "impacts", "quantization", "k1", "b", "expansion")
"""Fields of a manifest's sparse leg that, beside the model, decide the impacts of documents."""


@dataclass
class LaterDocuments:
    """Encodes documents as those of the bundle with this manifest, for an index whose impacts are 1 to `most_impact`.
    BM25 in them is by the counts of the bundle's corpus. `cut` counts those that are longer than the model reads."""

    encoders: Encoders
    terms: TermImpacts | None
    manifest: Manifest
    most_impact: int
    cut: int = 0

    @classmethod
    def open(cls, recipe: Recipe, manifest: Manifest, most_impact: int) -> Self:
        """Load the recipe's encoder. Raises ResumeError if the bundle was made with another one or with another sparse
        leg, or while a build uses the work directory."""
        with work_lock(recipe.work, shared=True):
            encoders = load_recipe_encoders(recipe)
            leg = sparse_leg(recipe, None)
            before = {name: getattr(manifest.sparse, name) for name in _OF_IMPACTS}
            now = {name: getattr(leg.info, name) for name in _OF_IMPACTS}
            before["models"] = [model.sha256 for model in (manifest.model, manifest.sparse.model) if model is not None]
            now["models"] = [model.fingerprint for model in encoders.models]
            check_same(recipe.output, before, now, "table")
            terms = None
            if leg.info.impacts == "bm25":
                documents = manifest.documents if manifest.live is None else None
                terms = TermImpacts.again(leg, recipe.work, manifest.corpus.sha256, documents)
            return cls(encoders, terms, manifest, most_impact)

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Return vectors, None without a dense leg, and impacts by term. Raises ModelError, and DocumentError for an
        impact that the index can't have."""
        ids, texts = [document.id for document in documents], [document.full_text for document in documents]
        rows = model_rows(ids, self.encoders.encode_documents(texts), self.encoders.are_cut(texts))
        self.cut += int(rows.cut.sum())
        batch = encoded_batch(documents, rows)
        vectors = dense_prefix(batch, self.manifest.dimension, first=0)
        if self.terms is not None:
            batch = self.terms.joined(batch, self.terms.bm25.impacts(texts), [*self.terms.bm25.numbers], first=0)
        kept = keep_top_terms(batch, self.manifest.sparse.top_k)
        dense: list[Float32Array | None] = [*vectors] if self.manifest.dense else [None] * len(ids)
        return [Encoded(dense[row], self._impacts(kept, row), bool(rows.cut[row])) for row in range(len(ids))]

    def _impacts(self, batch: EncodedBatch, row: int) -> dict[str, int]:
        part = slice(batch.indptr[row], batch.indptr[row + 1])
        impacts = batch.impacts[part].tolist()
        terms = [f"{term}" if batch.names is None else batch.names[term] for term in batch.terms[part].tolist()]
        try:
            return read_impacts(dict(zip(terms, impacts, strict=True)), self.manifest, self.most_impact)
        except DocumentError as error:
            what = error.message.removeprefix(f"{error.field}: ")
            raise DocumentError(f"document {batch.ids[row]!r}: {error.field}", what, remedy=error.remedy) from error
