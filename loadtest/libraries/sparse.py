"""Libraries for the sparse leg: Lucene, our compiled scan, Seismic and BMP."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.evaluation.bm25 import WordIndex
from lightretriever.loadtest.client.connection import LoadError
from lightretriever.loadtest.libraries.library import DEPTH, Index, Library, Query, Row, Source
from lightretriever.loadtest.servers.bundle_documents import word_index

__all__ = ["SPARSE"]

_NARROW: Final = 1 << 16  # terms that 16 bits can number


def _compiled(source: Source, build: Row) -> Index:
    """Our C++ scan, of a bundle whose terms are tokens. Raises BundleError for a bundle without its lists."""
    lists = source.bundle.accelerator()
    if lists is None:
        path, remedy = source.bundle.path, "Build it with index.vocabulary: tokens and index.accelerate: true."
        raise BundleError(f"{path} has no compiled backend.", remedy=remedy)
    return Index(
        lambda query: lists.search(query[0], query[1], DEPTH)[0],
        prepare=lambda query: (np.array([int(term) for term in query.terms], np.int32), query.weights),
    )


def _lucene(source: Source, build: Row) -> Index:
    """Lucene's own queries over the impacts."""
    index = source.bundle.sparse()
    return Index(lambda query: index.search(query.terms, query.weights, DEPTH)[0])


def _bm25(source: Source, build: Row) -> Index:
    """Lucene's BM25 over words; a search includes finding the words of the query."""
    index = WordIndex.open(word_index(source.bundle, source.work))
    ordinals = {name: number for number, name in enumerate(index.ids())}
    return Index(
        lambda text: index.search(text, DEPTH),
        prepare=lambda query: query.text,
        numbers=lambda answer: [ordinals[name] for name, _ in answer],
    )


def _seismic(source: Source, build: Row) -> Index:
    """Blocks of similar documents in every posting list, of which those with a promising summary are scored."""
    seismic, terms = import_module("seismic"), len(source.terms)
    large = "" if terms <= _NARROW else "LV"
    kind, setting = getattr(seismic, f"SeismicIndex{large}"), dict[str, Any]()

    def write(folder: Path) -> None:
        data, first = getattr(seismic, f"SeismicDataset{large}")(dim=terms), 0
        for indptr, ids, impacts in source.impacts():
            names = [str(first + row) for row in range(len(indptr) - 1)]
            data.add_documents_by_id(names, ids.astype(np.int64), impacts.astype(np.float32), indptr)
            first += len(names)
        kind.build_from_dataset(data, **build).save(str(folder / "index"))

    folder = source.built(f"seismic-{build['n_postings']}-{build['summary_energy']}", write)
    index, text = kind.load(str(next(folder.iterdir()))), seismic.get_seismic_string()
    factors = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

    def prepare(query: Query) -> tuple[Any, Any]:
        numbers, weights = source.numbered(query)
        return np.array(list(map(str, numbers)), text), weights

    return Index(
        lambda query: index.search("", *query, k=DEPTH, **setting),
        prepare=prepare,
        numbers=lambda answer: [int(name) for _, _, name in answer],
        settings=[{"query_cut": cut, "heap_factor": factor} for cut in (10, 100) for factor in factors],
        set=setting.update,
    )


def _bmp(source: Source, build: Row) -> Index:
    """Blocks of documents in the order of their bounds. An impact has 8 bits, a weight of a query 5."""
    bmp, setting = import_module("bmp"), dict[str, Any]()
    if len(source.terms) > _NARROW:
        raise LoadError("BMP numbers terms by 16 bits; this bundle has more.")

    def write(folder: Path) -> None:
        scale = 255 / max(int(impacts.max(initial=1)) for _, _, impacts in source.impacts())
        index, first = bmp.Indexer(str(folder / "index"), **build, compress_range=False), 0
        for indptr, ids, impacts in source.impacts():
            names, values = list(map(str, ids.tolist())), np.maximum(1, np.rint(impacts * scale)).astype(int).tolist()
            for row, (start, end) in enumerate(zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)):
                index.add_document(str(first + row), dict(zip(names[start:end], values[start:end], strict=True)))
            first += len(indptr) - 1
        index.finish()

    def prepare(query: Query) -> dict[str, float]:
        numbers, weights = source.numbered(query)
        return dict(zip(map(str, numbers), weights.tolist(), strict=True))

    index = bmp.Searcher(str(source.built(f"bmp-{build['bsize']}", write) / "index"))
    return Index(
        lambda query: index.search(query, k=DEPTH, **setting),
        prepare=prepare,
        numbers=lambda answer: [int(name) for name in answer[0]],
        settings=[{"alpha": alpha, "beta": 1.0} for alpha in (1.0, 0.9, 0.8, 0.7, 0.6)],
        set=setting.update,
    )


def _seismic_builds(documents: int, dimension: int) -> list[Row]:
    """The library's own defaults, and lists that are not cut, with longer summaries."""
    return [{"n_postings": 3500, "summary_energy": 0.4}, {"n_postings": documents, "summary_energy": 0.6}]


SPARSE: Final = {
    "compiled": Library("lightretriever-search", _compiled),
    "lucene": Library("pyserini", _lucene),
    "bm25": Library("pyserini", _bm25),
    "seismic": Library("pyseismic-lsr", _seismic, _seismic_builds),
    "bmp": Library("bmp", _bmp, lambda documents, dimension: [{"bsize": 16}, {"bsize": 64}]),
}
"""Libraries by name."""
