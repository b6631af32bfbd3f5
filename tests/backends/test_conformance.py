"""What every backend of a leg does alike: one suite over all of them.

A backend is described by how it is opened, its leg, and how far its scores may be off the exact ones.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.sparse.index import scores_of
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service.backends.base import Backends, DocumentFilter, EncodedQuery, ScoredDocuments
from lightretriever.service.backends.local import open_local
from lightretriever.service.backends.opensearch import open_cluster
from lightretriever.service.execution.executor import Executor
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.settings import Settings
from tests.support.cluster import connected, remove_indexes
from tests.support.tiny import make_tiny_bundle, tiny_batches, tiny_documents
from tests.support.wordings import raises

QUERIES = (
    "play music from the terminal",
    "scientific papers and large images",
    "music music music",
    "search engine retrieval document query",
    "Übergröße façade",
)
ALL = 1000  # more than there are documents
Bundles = dict[VocabularyKind, Bundle]


@dataclass(frozen=True)
class Backend:
    """A leg in a backend, over the terms of a vocabulary. error: how far off the exact scores are."""

    name: str
    leg: LegName
    vocabulary: VocabularyKind = "tokens"
    error: float = 0.0

    @property
    def positive(self) -> bool:
        """Whether only documents that score above 0 are found."""
        return self.leg == "sparse"

    def __str__(self) -> str:
        return f"{self.name}-{self.leg}-{self.vocabulary}"


BACKENDS = (
    Backend("faiss", "dense", error=1e-5),
    Backend("opensearch", "dense", error=1e-5),
    *(Backend(name, "sparse", kind) for name in ("lucene", "opensearch") for kind in get_args(VocabularyKind)),
)


class Corpus:
    """The tiny documents as they are encoded: vectors (N, D), the impacts of each by term, and the tokens' table."""

    def __init__(self, bundle: Bundle) -> None:
        self.documents, self._tokenizer, self._table = tiny_documents(), bundle.tokenizer(), bundle.table("default")
        self.rows: list[dict[str, int]] = []
        vectors = list[npt.NDArray[np.float32]]()
        vocabulary = bundle.manifest.sparse.vocabulary
        for batch in tiny_batches(self.documents, self._tokenizer, vocabulary=vocabulary):
            vectors.append(batch.dense)
            for start, end in pairwise(batch.indptr.tolist()):
                terms, impacts = batch.terms[start:end].tolist(), batch.impacts[start:end].tolist()
                names = [str(term) if batch.names is None else batch.names[term] for term in terms]
                self.rows.append(dict(zip(names, impacts, strict=True)))
        self._vectors = np.concatenate(vectors).astype(np.float64)

    def dense_scores(self, query: str) -> npt.NDArray[np.float64]:
        """The exact score of every document, (N,)."""
        mean = self._table.rows(np.array(self._tokenizer.query_ids(query))).astype(np.float64).mean(axis=0)
        return np.asarray(self._vectors @ (mean / np.linalg.norm(mean)))

    def sparse_scores(self, query: EncodedQuery) -> npt.NDArray[np.float64]:
        """The exact score of every document, (N,): float32 products, whose sums above and below 0 are float32, too."""
        impacts = np.array([[row.get(term, 0) for term in query.terms] for row in self.rows], np.float32)
        products = impacts.reshape(len(self.rows), -1) * query.weights
        up, down = (np.maximum(sign * products, 0).sum(axis=1, dtype=np.float64) for sign in (1, -1))
        return np.asarray(up.astype(np.float32) - down.astype(np.float32), np.float64)


@dataclass
class Opened:
    """A backend under test, and the documents that it has."""

    backend: Backend
    backends: Backends
    corpus: Corpus
    encoder: QueryEncoder
    open: Callable[[], Backends]

    def query(self, text: str) -> EncodedQuery:
        return self.encoder.encode(text, "default", StageClock())

    def exact(self, text: str) -> npt.NDArray[np.float64]:
        """The scores of all documents, (N,)."""
        if self.backend.leg == "dense":
            return self.corpus.dense_scores(text)
        return self.corpus.sparse_scores(self.query(text))

    def given(self, text: str, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The scores of given documents, (m,)."""
        query = self.query(text)
        if self.backend.leg == "dense":
            return self.backends.scores(query.vector, ordinals)
        return scores_of(self.backends.shares(query, ordinals))


@pytest.fixture(scope="module", params=["count", "idf"])
def bundles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    folder = tmp_path_factory.mktemp("backends")
    fields: dict[str, FieldKind] = {"year": "number"}
    return {
        kind: make_tiny_bundle(
            folder / kind, vocabulary=kind, idf=request.param == "idf" and kind != "words", fields=fields
        )
        for kind in get_args(VocabularyKind)
    }


@pytest.fixture(scope="module")
def pushed(bundles: Bundles, opensearch: str) -> Iterator[Callable[[Bundle], Backends]]:
    """Opens a bundle on the cluster."""
    name = f"conformance-{os.getpid()}"
    for kind in get_args(VocabularyKind):
        with connected(opensearch) as cluster:
            push(bundles[kind], cluster, f"{name}-{kind}", shards=2, replicas=0)
    there = Settings(opensearch_url=opensearch, opensearch_index=name, deadline_ms=60_000)

    def open_pushed(bundle: Bundle) -> Backends:
        index = f"{name}-{bundle.manifest.sparse.vocabulary}"
        there_too = there.model_copy(update={"opensearch_index": index})
        return open_cluster(bundle, there_too)

    yield open_pushed
    remove_indexes(opensearch, name)


def open_here(bundle: Bundle) -> Backends:
    return open_local(bundle, Settings(), Executor())


@pytest.fixture(scope="module", params=BACKENDS, ids=str)
def opened(request: pytest.FixtureRequest, bundles: Bundles) -> Iterator[Opened]:
    backend: Backend = request.param
    bundle = bundles[backend.vocabulary]
    opening = request.getfixturevalue("pushed") if backend.name == "opensearch" else open_here
    backends = opening(bundle)
    tokenizer = bundle.tokenizer()
    encoder = QueryEncoder(tokenizer, {"default": bundle.table("default")}, bundle.vocabulary(tokenizer), bundle.idf())
    yield Opened(backend, backends, Corpus(bundle), encoder, partial(opening, bundle))
    backends.close()


def backends_of(*legs: LegName) -> pytest.MarkDecorator:
    """For a test that only the backends of these legs can be put to."""
    fitting = [backend for backend in BACKENDS if backend.leg in legs]
    return pytest.mark.parametrize("opened", fitting, indirect=True, ids=str)


def found(opened: Opened, text: str, count: int, condition: tuple[str, ...] | None = None) -> ScoredDocuments:
    among = None if condition is None else opened.backends.documents.where(condition)
    return searched(opened.backends, opened.backend.leg, opened.query(text), count, among)


def searched(
    backends: Backends, leg: LegName, query: EncodedQuery, count: int, among: DocumentFilter | None = None
) -> ScoredDocuments:
    outcome = backends.search(query, [leg], count, among, perf_counter() + 60).outcomes[leg]
    assert outcome.value is not None, outcome.error
    return outcome.value


def test_it_says_what_it_is(opened: Opened) -> None:
    assert opened.backends.legs[opened.backend.leg] == opened.backend.name


@pytest.mark.parametrize("text", QUERIES)
@pytest.mark.parametrize("count", [1, 7, ALL])
def test_it_finds_the_best_documents(opened: Opened, text: str, count: int) -> None:
    exact = opened.exact(text)
    order = np.argsort(-exact, kind="stable")
    expected = (order[exact[order] > 0] if opened.backend.positive else order)[:count].tolist()
    ordinals, scores = found(opened, text, count)
    assert (ordinals.dtype.name, scores.dtype.name) == ("int64", "float32")
    assert np.abs(scores - exact[ordinals]).max(initial=0) <= opened.backend.error
    assert np.abs(np.sort(exact[expected]) - np.sort(exact[ordinals])).max(initial=0) <= 2 * opened.backend.error
    assert list(zip(-scores, ordinals, strict=True)) == sorted(zip(-scores, ordinals, strict=True))
    if opened.backend.error == 0:
        assert ordinals.tolist() == expected


@pytest.mark.parametrize("text", QUERIES)
def test_given_documents_get_the_scores_of_a_search(opened: Opened, text: str) -> None:
    ordinals, scores = found(opened, text, ALL)
    order = np.random.default_rng(3).permutation(ordinals.size)
    again = opened.given(text, ordinals[order])
    assert again.tolist() == scores[order].tolist()
    others = np.setdiff1d(np.arange(len(opened.corpus.documents)), ordinals)
    if opened.backend.positive:
        assert not opened.given(text, others).any()


def test_an_ordinal_of_no_document_is_refused(opened: Opened) -> None:
    for wrong in (-1, len(opened.corpus.documents)):
        with raises(ValueError):
            opened.given("music", np.array([0, wrong]))
    assert opened.given("music", np.empty(0, np.int64)).shape == (0,)


def test_a_filter_changes_no_score(opened: Opened) -> None:
    years = np.array([document.year for document in opened.corpus.documents])
    for text in QUERIES:
        among = found(opened, text, ALL, ("number", "year", "2003.0", "2010.0"))
        whole = dict(zip(*(part.tolist() for part in found(opened, text, ALL)), strict=True))
        kept = {ordinal: score for ordinal, score in whole.items() if 2003 <= years[ordinal] <= 2010}
        assert dict(zip(among.ordinals.tolist(), among.scores.tolist(), strict=True)) == kept
    for low, high in (("1900.0", "1901.0"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity")):
        assert found(opened, "music", ALL, ("number", "year", low, high)).ordinals.size == 0


def test_the_shares_of_a_score_add_up_to_it(opened: Opened) -> None:
    for text in QUERIES:
        ordinals, scores = found(opened, text, 20)
        query = opened.query(text)
        if opened.backend.leg == "dense":
            parts = query.tokens.ids.size
            shares = opened.encoder.token_shares(query, "default", opened.backends.vectors(ordinals))
        else:
            parts, shares = len(query.terms), opened.backends.shares(query, ordinals)
        assert shares.shape == (ordinals.size, parts)
        assert shares.astype(np.float64).sum(axis=1) == pytest.approx(scores, rel=1e-5, abs=1e-5)


@backends_of("sparse")  # every document has a cosine
def test_a_query_of_unknown_terms_finds_nothing(opened: Opened) -> None:
    term = {"tokens": "399999", "words": "zzzzqqqq"}[opened.backend.vocabulary]
    query = EncodedQuery.of_model([term], np.ones(1, np.float32), None)
    for unknown in (query, EncodedQuery.of_model([], np.empty(0, np.float32), None)):
        assert searched(opened.backends, "sparse", unknown, 10).ordinals.size == 0


def test_threads_get_what_one_gets(opened: Opened) -> None:
    alone = [found(opened, text, 10) for text in QUERIES]
    with ThreadPoolExecutor(4) as threads:
        many = list(threads.map(lambda number: found(opened, QUERIES[number % len(QUERIES)], 10), range(100)))
    for number, got in enumerate(many):
        expected = alone[number % len(QUERIES)]
        assert got.ordinals.tolist() == expected.ordinals.tolist()
        assert got.scores.tolist() == expected.scores.tolist()


def test_it_opens_again_and_closes_twice(opened: Opened) -> None:
    before = found(opened, "play music", 10)
    again = opened.open()
    try:
        got = searched(again, opened.backend.leg, opened.query("play music"), 10)
        assert got.ordinals.tolist() == before.ordinals.tolist()
        assert got.scores.tolist() == before.scores.tolist()
    finally:
        again.close()
    again.close()
    assert found(opened, "play music", 10).ordinals.tolist() == before.ordinals.tolist()
