"""What every backend of a leg does alike: one suite over all of them.

A backend is described by how it is opened, its leg, and how far its scores may be off the exact ones.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.service.backends.base import Backends, EncodedQuery, Leg, ScoredDocuments
from lightretriever.service.backends.local import open_local
from lightretriever.service.backends.opensearch import open_cluster
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.settings import Settings

from tests.service.reference import Corpus
from tests.support.cluster import connected, remove_indexes
from tests.support.tiny import make_tiny_bundle

QUERIES = (
    "play music from the terminal",
    "scientific papers and large images",
    "music music music",
    "search engine retrieval document query",
    "Übergröße façade",
)
ALL = 1000  # more than there are documents


@dataclass(frozen=True)
class Backend:
    """A leg in a backend. scores: the exact scores of all documents, (N,), for a query's text; error: how far off."""

    name: str
    leg: LegName
    accelerate: bool
    error: float
    positive: bool  # whether only documents that score above 0 are found
    scores: Callable[[Corpus, str], npt.NDArray[np.float64]] | None

    def __str__(self) -> str:
        return f"{self.name}-{self.leg}"


BACKENDS = (
    Backend("faiss", "dense", False, 1e-5, False, Corpus.dense_scores),
    Backend("lucene", "sparse", False, 0.0, True, Corpus.sparse_scores),
    Backend("compiled", "sparse", True, 0.0, True, Corpus.sparse_scores),
    Backend("lucene", "bm25", False, 0.0, True, None),
    Backend("opensearch", "dense", False, 1e-5, False, Corpus.dense_scores),
    Backend("opensearch", "sparse", False, 0.0, True, Corpus.sparse_scores),
    Backend("opensearch", "bm25", False, 0.0, True, None),
)


@dataclass
class Opened:
    """A backend under test, and the corpus as matrices."""

    backend: Backend
    backends: Backends
    leg: Leg
    corpus: Corpus
    encoder: QueryEncoder
    open: Callable[[], Backends]

    def query(self, text: str) -> EncodedQuery:
        query = self.encoder.encode(text, "default", StageClock())
        query.text = text
        return self.encoder.with_parts(query, "default")

    def exact(self, text: str) -> npt.NDArray[np.float64]:
        """The scores of all documents, (N,): those of the reference, or the leg's own where there is none."""
        if self.backend.scores is not None:
            return self.backend.scores(self.corpus, text)
        everything = np.arange(len(self.corpus.documents))
        return self.leg.scores(self.query(text), everything).astype(np.float64)


@pytest.fixture(scope="module", params=["count", "idf"])
def bundles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Bundle]:
    folder = tmp_path_factory.mktemp("backends")
    fields: dict[str, FieldKind] = {"year": "number"}
    return {
        accelerate: make_tiny_bundle(
            folder / str(accelerate), words=True, idf=request.param == "idf", accelerate=accelerate, fields=fields
        )
        for accelerate in (False, True)
    }


@pytest.fixture(scope="module")
def pushed(bundles: dict[bool, Bundle], opensearch: str) -> Iterator[Callable[[], Backends]]:
    """Opens the bundle on the cluster."""
    name = f"conformance-{os.getpid()}"
    with connected(opensearch) as cluster:
        push(bundles[False], cluster, name, shards=2, replicas=0, skipped=int, written=int)
    settings = Settings(backend="opensearch", opensearch_url=opensearch, opensearch_index=name, deadline_ms=60_000)
    yield partial(open_cluster, bundles[False], settings)
    remove_indexes(opensearch, name)


@pytest.fixture(scope="module", params=BACKENDS, ids=str)
def opened(request: pytest.FixtureRequest, bundles: dict[bool, Bundle]) -> Iterator[Opened]:
    backend: Backend = request.param
    bundle = bundles[backend.accelerate]
    open_backends = partial(open_local, bundle)
    if backend.name == "opensearch":
        open_backends = request.getfixturevalue("pushed")
    backends = open_backends()
    encoder = QueryEncoder(bundle.tokenizer(), {"default": bundle.table("default")}, bundle.idf())
    yield Opened(backend, backends, backends.legs[backend.leg], Corpus(bundle), encoder, open_backends)
    backends.close()


def backends_of(*legs: LegName) -> pytest.MarkDecorator:
    """For a test that only the backends of these legs can be put to."""
    fitting = [backend for backend in BACKENDS if backend.leg in legs]
    return pytest.mark.parametrize("opened", fitting, indirect=True, ids=str)


def found(opened: Opened, text: str, count: int, condition: tuple[str, ...] | None = None) -> ScoredDocuments:
    among = None if condition is None else opened.backends.documents.where(condition)
    return opened.leg.search(opened.query(text), count, among)


def test_it_says_what_it_is(opened: Opened) -> None:
    assert (opened.leg.name, opened.leg.backend) == (opened.backend.leg, opened.backend.name)


@pytest.mark.parametrize("text", QUERIES)
@pytest.mark.parametrize("count", [1, 7, ALL])
def test_it_finds_the_best_documents(opened: Opened, text: str, count: int) -> None:
    exact = opened.exact(text)
    expected = opened.corpus.rank(exact, count, positive=opened.backend.positive)
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
    again = opened.leg.scores(opened.query(text), ordinals[order])
    assert again.tolist() == scores[order].tolist()
    others = np.setdiff1d(np.arange(len(opened.corpus.documents)), ordinals)
    if opened.backend.positive:
        assert not opened.leg.scores(opened.query(text), others).any()


def test_an_ordinal_of_no_document_is_refused(opened: Opened) -> None:
    for wrong in (-1, len(opened.corpus.documents)):
        with pytest.raises(ValueError, match=str(wrong)):
            opened.leg.scores(opened.query("music"), np.array([0, wrong]))
    assert opened.leg.scores(opened.query("music"), np.empty(0, np.int64)).shape == (0,)


def test_a_filter_changes_no_score(opened: Opened) -> None:
    years = np.array([document.year for document in opened.corpus.documents])
    for text in QUERIES:
        among = found(opened, text, ALL, ("number", "year", "2003.0", "2010.0"))
        whole = dict(zip(*(part.tolist() for part in found(opened, text, ALL)), strict=True))
        kept = {ordinal: score for ordinal, score in whole.items() if 2003 <= years[ordinal] <= 2010}
        assert dict(zip(among.ordinals.tolist(), among.scores.tolist(), strict=True)) == kept
    for low, high in (("1900.0", "1901.0"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity")):
        assert found(opened, "music", ALL, ("number", "year", low, high)).ordinals.size == 0


def test_a_count_below_one_is_refused(opened: Opened) -> None:
    with pytest.raises(ValueError, match="k"):
        opened.leg.search(opened.query("music"), 0)


@backends_of("dense", "sparse")  # BM25 ranks by words, not by tokens
def test_the_shares_of_a_score_add_up_to_it(opened: Opened) -> None:
    for text in QUERIES:
        ordinals, scores = found(opened, text, 20)
        shares = opened.leg.shares(opened.query(text), ordinals)
        assert shares.shape == (ordinals.size, opened.query(text).terms.size)
        assert shares.astype(np.float64).sum(axis=1) == pytest.approx(scores, rel=1e-5, abs=1e-5)


@backends_of("sparse")  # the only leg whose queries have weights of their own
def test_negative_weights_count_against_documents(opened: Opened) -> None:
    query = opened.encoder.encode("play music", "default", StageClock(), extra_terms=[("terminal", -0.75)])
    ordinals, scores = opened.leg.search(query, ALL)
    products = opened.corpus.impacts[:, query.terms].astype(np.float32) * np.abs(query.weights)
    up, down = products[:, query.weights > 0], products[:, query.weights < 0]
    exact = up.sum(axis=1, dtype=np.float64).astype(np.float32) - down.sum(axis=1, dtype=np.float64).astype(np.float32)
    assert ordinals.tolist() == opened.corpus.rank(exact.astype(np.float64), ALL, positive=True)
    assert scores.tolist() == exact[ordinals].tolist()


@backends_of("sparse", "bm25")  # every document has a cosine
def test_a_query_of_unknown_tokens_finds_nothing(opened: Opened) -> None:
    query = EncodedQuery.of_text("zzzzqqqq")
    assert opened.leg.search(query, 10).ordinals.size == 0


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
        leg = again.legs[opened.backend.leg]
        got = leg.search(opened.query("play music"), 10)
        assert got.ordinals.tolist() == before.ordinals.tolist()
        assert got.scores.tolist() == before.scores.tolist()
    finally:
        again.close()
    again.close()
    assert found(opened, "play music", 10).ordinals.tolist() == before.ordinals.tolist()


def test_the_accelerator_is_built_on_request(bundles: dict[bool, Bundle]) -> None:
    def plain(path: Path) -> list[str]:
        return [file.name for file in path.rglob("*.plain")]

    assert plain(bundles[False].path) == []
    assert plain(bundles[True].path) == ["impacts.plain"]
