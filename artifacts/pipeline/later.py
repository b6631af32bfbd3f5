"""Documents that come after a bundle was built, encoded as the bundle's own were."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from lightretriever.artifacts.bundle.batches import EncodedBatch, check_batch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.bundle.parts import ExpansionInfo
from lightretriever.artifacts.cluster.documents import read_impacts
from lightretriever.artifacts.cluster.schema import IndexMeta
from lightretriever.artifacts.cluster.upsert import Encoded
from lightretriever.artifacts.corpus.beir import Document
from lightretriever.artifacts.errors import DocumentError, ResumeError
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.build import expansion_source
from lightretriever.artifacts.pipeline.encode import encoded_rows
from lightretriever.artifacts.pipeline.encoded import csr, later_bm25
from lightretriever.artifacts.pipeline.encoder import Encoder
from lightretriever.artifacts.pipeline.expansion import Expansion
from lightretriever.artifacts.pipeline.paired_encoder import PairedEncoder
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.stages import load_recipe_encoder

__all__ = ["LaterDocuments"]


@dataclass
class LaterDocuments:
    """Encodes documents as those of the bundle with this manifest, for an index that was written from it. BM25 in their
    impacts is by the counts of the bundle's corpus. `cut` counts those that are longer than the model reads."""

    encoder: Encoder
    bm25: Bm25Encoder | None
    expansion: Expansion | None
    manifest: Manifest
    meta: IndexMeta
    cut: int = 0

    @classmethod
    def open(cls, recipe: Recipe, manifest: Manifest, meta: IndexMeta) -> Self:
        """Load the recipe's encoder. Raises ResumeError if the bundle was made with another one, or while a build uses
        the work directory."""
        with work_lock(recipe.work, shared=True):
            encoder = load_recipe_encoder(recipe)
            _check_model(encoder, recipe, manifest)
            corpus, expand = manifest.corpus.sha256, expansion_source(recipe, ShardStore(recipe.work / "encode"))
            expansion = None if expand is None else Expansion.read(*expand, recipe.work, corpus)
            return cls(encoder, later_bm25(recipe.work, corpus), expansion, manifest, meta)

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Give vectors and rank features. Raises ModelError, and DocumentError for an impact that the index can't
        have."""
        ids, texts = [one.id for one in documents], [one.full_text for one in documents]
        rows = encoded_rows(ids, self.encoder.encode_documents(texts), self.encoder.are_cut(texts))
        self.cut += sum(row.cut for row in rows)
        sparse = [(row.terms, row.impacts) for row in rows]
        if self.bm25 is not None:
            sparse = self.bm25.impacts(texts, learned=sparse if self.manifest.sparse.impacts == "both" else None)
        dense = np.array([row.dense for row in rows], np.float32)
        batch = EncodedBatch(ids, [one.raw for one in documents], dense, *csr(sparse))
        size, terms = self.manifest.dimension, self.manifest.sparse_vocab_size
        check_batch(batch, vocab_size=terms, dimension=size, first=0)
        vectors = dense_prefix(batch, size, first=0)
        if self.expansion is not None:
            batch = EncodedBatch(ids, batch.documents, dense, *csr(self.expansion.impacts(vectors, sparse)))
        kept = keep_top_terms(batch, self.manifest.sparse.top_k)
        return [(vectors[row], self._features(kept, row)) for row in range(len(ids))]

    def _features(self, batch: EncodedBatch, row: int) -> dict[str, int]:
        part = slice(batch.indptr[row], batch.indptr[row + 1])
        terms, impacts = batch.terms[part].tolist(), batch.impacts[part].tolist()
        try:
            return read_impacts(dict(zip(map(str, terms), impacts, strict=True)), self.meta, self.manifest)
        except DocumentError as error:
            what = error.message.removeprefix(f"{error.field}: ")
            raise DocumentError(f"document {batch.ids[row]!r}: {error.field}", what, remedy=error.remedy) from error


def _check_model(encoder: Encoder, recipe: Recipe, manifest: Manifest) -> None:
    if recipe.expand != manifest.sparse.expansion:
        raise ResumeError(
            f"{recipe.output}: was made with expand {_told(manifest.sparse.expansion)}, the recipe has "
            f"{_told(recipe.expand)} now.",
            remedy="Use the settings of the bundle, or build and push another one.",
        )
    sides = (encoder.dense, encoder.sparse) if isinstance(encoder, PairedEncoder) else (encoder,)
    now = [one.fingerprint for one in sides]
    made = [one.sha256 for one in (manifest.model, manifest.sparse.model) if one is not None]
    if now != made:
        raise ResumeError(
            f"{recipe.output}: was made with another model than the recipe has now (SHA-256 {made}, now {now}).",
            remedy="Use the model of the bundle, or build and push another one.",
        )


def _told(expansion: ExpansionInfo | None) -> str:
    return "none" if expansion is None else str(expansion)
