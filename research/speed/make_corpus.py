"""Make a bundle of any size that searches like a real one.

    python -m research.speed.make_corpus RECIPE OUTPUT --documents 1000000

RECIPE is the recipe of an existing bundle. The program fits a model to its encoded documents, in the work directory.
Tokenizer, token tables and IDF of the new bundle are those of the real one. A thousand of `--queries`, spread over
them, lay out the dense index, as a recipe's queries would.

The model consists of neighbourhoods: every fitted document with its nearest ones, k in total. A synthetic document is
drawn near a fitted one, from one of the neighbourhoods that contain it. Within a neighbourhood, a document's share p_j
falls with the number of neighbourhoods that contain it, so all fitted documents have equal influence.

dense   a Gaussian with the neighbourhood's mean and covariance, normalised to length 1
sparse  each term selects one of the k documents, document j with probability p_j, and is kept with its impact there if
        that document has it
text    the JSON of the central document, under another id

docs/speed.md lists what the model keeps and loses.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import faiss
import numpy as np
import numpy.typing as npt
import orjson

from lightretriever.artifacts.bundle.batches import EncodedBatch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.manifest import CorpusInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import (
    BundleContent,
    DenseSettings,
    TableInput,
    write_bundle,
)
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.build import sparse_leg
from lightretriever.artifacts.pipeline.encoded import TextStore, encoded_corpus
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.terms import encoded_batches
from lightretriever.loadtest.program import option, program

__all__ = ["Sample", "SyntheticCorpus", "main", "make_bundle", "read_sample"]

_NEIGHBOURS: Final = 30  # with fewer, samples lie in too few directions; with more, between subjects
_BATCH: Final = 1024
_PARTS: Final = 65_536  # probabilities are multiples of 1 / _PARTS
_POOL: Final = 1 << 20

Floats = npt.NDArray[np.float32]
Ordinals = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A whole encoded corpus in memory: n documents.

    `documents`: their JSON. `dense` (n, D) float32 of length 1. `indptr` (n+1,) int64, `terms` (nnz,) int32 and
    `impacts` (nnz,) uint16: the sparse vectors in CSR form. `names`: the terms by number; None where these are token
    ids.
    """

    documents: list[bytes]
    dense: Floats
    indptr: Ordinals
    terms: npt.NDArray[np.int32]
    impacts: npt.NDArray[np.uint16]
    names: Sequence[str] | None = None

    @classmethod
    def of(cls, batches: Sequence[EncodedBatch], dimension: int, top_k: int | None = None) -> Self:
        """Join batches, cut to `dimension` and `top_k` as in a bundle."""
        kept = [keep_top_terms(batch, top_k) for batch in batches]
        counts = np.concatenate([np.diff(batch.indptr) for batch in kept])
        return cls(
            documents=[document for batch in kept for document in batch.documents],
            dense=np.concatenate([dense_prefix(batch, dimension, first=0) for batch in kept]),
            indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            terms=np.concatenate([batch.terms for batch in kept]).astype(np.int32),
            impacts=np.concatenate([batch.impacts for batch in kept]).astype(np.uint16),
            names=kept[-1].names,  # those of the batches before are the first of them
        )

    def postings(self, documents: Ordinals) -> tuple[Ordinals, Ordinals]:
        """Locate the terms of given documents (m,), one document after the other.

        Two arrays int64 (t,): each term's document among the m, and its index in `terms` and `impacts`.
        """
        counts = self.indptr[documents + 1] - self.indptr[documents]
        rows = np.repeat(np.arange(documents.size), counts)
        before = np.cumsum(counts) - counts
        places = np.arange(rows.size) + (self.indptr[documents] - before)[rows]
        return rows, places


class SyntheticCorpus:
    """A model of an encoded corpus that generates documents; the same seed gives the same documents."""

    def __init__(self, sample: Sample, *, seed: int = 0, neighbours: int = _NEIGHBOURS) -> None:
        """Fit the model, with neighbourhoods of `neighbours` documents. ValueError for a sample without documents."""
        if not sample.documents:
            raise ValueError("a model can't be fitted to no documents")
        self._sample = sample
        self._seed = seed
        self._vocabulary = int(sample.terms.max(initial=0)) + 1
        self.neighbours: int = min(neighbours, len(sample.documents))
        _, near = faiss.knn(sample.dense, sample.dense, self.neighbours, metric=faiss.METRIC_INNER_PRODUCT)
        self.dimension: int = sample.dense.shape[1]
        self._near: Ordinals = near
        rarity = 1 / np.maximum(1, np.bincount(near.ravel(), minlength=len(near)))[near]
        self._shares: Doubles = rarity / rarity.sum(axis=1, keepdims=True)
        self._weights: Doubles = rarity.sum(axis=1) / rarity.sum()  # picks a document, then a neighbourhood that has it

    def draw(self, documents: int) -> Iterator[EncodedBatch]:
        """Generate documents, named s0, s1, …, in batches."""
        generator = np.random.default_rng(self._seed)
        for first in range(0, documents, _BATCH):
            yield self._batch(generator, first, min(_BATCH, documents - first))

    def _batch(self, generator: np.random.Generator, first: int, size: int) -> EncodedBatch:
        middles = generator.choice(len(self._near), size=size, p=self._weights)
        dense = self._vectors(generator, middles)
        indptr, places = self._terms(generator, middles)
        ids = [f"s{first + place}" for place in range(size)]
        texts = [
            orjson.dumps({**orjson.loads(self._sample.documents[middle]), "_id": name})
            for middle, name in zip(middles, ids, strict=True)
        ]
        sample = self._sample
        return EncodedBatch(ids, texts, dense, indptr, sample.terms[places], sample.impacts[places], names=sample.names)

    def _vectors(self, generator: np.random.Generator, middles: Ordinals) -> Floats:
        """Draw dense vectors (m, D) float32 of length 1, near the central documents (m,).

        With shares p, documents d, their mean μ = Σ p_j d_j and standard normal g, Σ √p_j g_j (d_j - μ) has the
        covariance Σ p_j (d_j - μ)(d_j - μ)ᵀ, too small by a factor of 1 - Σ p_j², like any sample covariance.
        """
        shares = self._shares[middles]
        normal = np.sqrt(shares) * generator.standard_normal(shares.shape)
        scatter = normal - shares * normal.sum(axis=1, keepdims=True)
        missing = np.maximum(1 - (shares**2).sum(axis=1, keepdims=True), 1 / _PARTS)
        weights = (shares + scatter / np.sqrt(missing)).astype(np.float32)
        drawn = np.matmul(weights[:, None, :], self._sample.dense[self._near[middles]])[:, 0]
        vectors: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        return vectors

    def _terms(self, generator: np.random.Generator, middles: Ordinals) -> tuple[Ordinals, Ordinals]:
        """Draw the terms of documents near the central ones (m,): indptr (m+1,), and their indices in the sample.

        A random number of the term selects the document. It comes from a pool at the document's offset, so that it is
        the same for all its neighbours; drawing one for every term and document would be much slower.
        """
        pool = generator.integers(_PARTS, size=_POOL + self._vocabulary, dtype=np.uint16)
        offsets = generator.integers(_POOL, size=len(middles))
        edges = np.rint(np.cumsum(self._shares[middles], axis=1) * _PARTS).astype(np.int32)
        begins = np.concatenate([np.zeros((len(middles), 1), np.int32), edges[:, :-1]], axis=1)
        pairs, places = self._sample.postings(self._near[middles].ravel())
        drawn = pool[np.repeat(offsets, self.neighbours)[pairs] + self._sample.terms[places]]
        kept = np.flatnonzero((drawn >= begins.ravel()[pairs]) & (drawn < edges.ravel()[pairs]))
        rows, places = pairs[kept] // self.neighbours, places[kept]
        order = np.argsort(rows * self._vocabulary + self._sample.terms[places])
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(middles)))]).astype(np.int64)
        return indptr, places[order]


def read_sample(recipe: Recipe, dimension: int | None = None) -> Sample:
    """Read the encoded documents of a recipe, cut like its bundle, or to fewer dimensions. Raises ResumeError if some
    are missing, RecipeError for more dimensions than the bundle has."""
    manifest = Bundle.open(recipe.output).manifest
    if dimension is not None and not 1 <= dimension <= manifest.dimension:
        most = manifest.dimension
        raise RecipeError(f"--dimension is {dimension}, the bundle has {most}.", remedy=f"Give 1 to {most}.")
    leg = sparse_leg(recipe, TextStore(recipe.work / "encode"))
    batches = list(encoded_batches(recipe.work, encoded_corpus(recipe), leg))
    return Sample.of(batches, dimension or manifest.dimension, manifest.sparse.top_k)


def make_bundle(
    source: Bundle,
    corpus: SyntheticCorpus,
    documents: int,
    output: Path,
    factory: str | None,
    queries: Sequence[str],
) -> Bundle:
    """Write `documents` synthetic documents as a bundle, with the corpus's dimensions, all else as in `source`. Errors
    as in `write_bundle`."""
    manifest, own = source.manifest, source.manifest.sparse.tokenizer
    ids = np.arange(manifest.vocab_size)
    tables = {task: TableInput(info.instruction, source.table(task).rows(ids)) for task, info in manifest.tasks.items()}
    content = BundleContent(
        name=f"{manifest.name}-{documents}",
        model=manifest.model,
        corpus=CorpusInfo(name=f"{documents:,} synthetic documents after {manifest.corpus.name}"),
        tokenizer_file=source.path / manifest.tokenizer.file,
        lowercase=manifest.tokenizer.lowercase,
        tables=tables,
        default_task=manifest.default_task,
        documents=corpus.draw(documents),
        dimension=corpus.dimension,
        sparse=manifest.sparse,
        idf=source.idf(),
        sparse_tokenizer_file=None if own is None else source.path / own.file,
        dense=DenseSettings(factory, queries),
        weights=manifest.fusion,
    )
    return write_bundle(output, content)


@program(
    option("recipe", Path, "recipe of the real bundle"),
    option("output", Path, "the bundle to write"),
    option("--documents", int),
    option("--seed", 7),
    option("--dimension", None, "dimensions (those of the real bundle)", type=int),
    option("--factory", None, "Faiss factory string (by size)"),
    option("--queries", None, "folder in BEIR layout: lays out the dense index", type=Path),
)
def main(given: Namespace) -> None:
    """Make the bundle."""
    recipe = read_recipe(given.recipe, Recipe)
    source, sample = Bundle.open(recipe.output), read_sample(recipe, given.dimension)
    corpus = SyntheticCorpus(sample, seed=given.seed)
    print(f"fitted to {len(sample.documents):,} documents and their neighbourhoods", file=sys.stderr)
    texts = [] if given.queries is None else list(read_queries(find_file(given.queries, "queries")).values())
    bundle = make_bundle(source, corpus, given.documents, given.output, given.factory, texts)
    print(f"{bundle.path}: {bundle.manifest.documents:,} documents")


if __name__ == "__main__":
    sys.exit(main())
