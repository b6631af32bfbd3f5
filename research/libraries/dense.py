"""Libraries for the dense leg: Faiss with our query-aware layout and without it, USearch and Scalable Vector Search."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from lightretriever.artifacts.dense.build import build_dense_index, lists_by_size, product_parts, write_dense_index
from lightretriever.artifacts.dense.index import innermost
from lightretriever.artifacts.dense.query_aware import query_aware_factory
from research.libraries.library import DEPTH, Index, Library, Row, Source, encode

__all__ = ["DENSE"]

_DEGREE: Final = 32
_EF_CONSTRUCTION: Final = 200


def _widths(first: float, last: float) -> list[int]:
    """Give whole numbers from `first` to `last`, each 1.15 times the one before."""
    return sorted({max(1, round(first * 1.15**power)) for power in range(int(np.log(last / first) / np.log(1.15)) + 1)})


_GRAPH_WIDTHS: Final = _widths(DEPTH, 16 * DEPTH)


def _faiss(source: Source, build: Row) -> Index:
    """An index by a factory string, or laid out by queries without one, searched by Faiss alone."""

    def write(folder: Path) -> None:
        vectors, factory, queries = source.vectors(), build.get("factory"), None
        if factory is None:
            queries = np.stack([query.dense for query in encode(source.bundle, source.layout)])
            factory = query_aware_factory(vectors, queries, lists_by_size(len(vectors)))
        write_dense_index(build_dense_index(vectors, factory, queries), folder / "index")

    index = faiss.read_index(str(source.built(f"faiss-{build.get('factory', 'queries')}", write) / "index"))
    faiss.omp_set_num_threads(1)
    if isinstance(innermost(index), faiss.IndexHNSW):
        settings = [{"efSearch": width} for width in _GRAPH_WIDTHS]
    else:
        lists = faiss.extract_index_ivf(index).nlist
        probes = _widths(max(1, lists / 64), lists / 2)
        settings = [{"nprobe": probe, "k_factor_rf": factor} for factor in (2, 3, 4, 6, 8, 12) for probe in probes]

    def change(setting: Row) -> None:
        for name, value in setting.items():
            faiss.ParameterSpace().set_index_parameter(index, name, value)

    def search(vector: Any) -> Any:
        return index.search(vector, DEPTH)[1][0]

    return Index(search, prepare=lambda query: query.dense[None], settings=settings, set=change)


def _usearch(source: Source, build: Row) -> Index:
    """A graph over vectors of 16 or 8 bits a dimension."""
    options = {**build, "metric": "ip", "connectivity": _DEGREE, "expansion_add": _EF_CONSTRUCTION}
    index = import_module("usearch.index").Index(ndim=source.bundle.manifest.dimension, **options)

    def write(folder: Path) -> None:
        vectors = source.vectors()
        index.add(np.arange(len(vectors)), np.ascontiguousarray(vectors))
        index.save(str(folder / "index"))

    index.load(str(source.built(f"usearch-{build['dtype']}", write) / "index"))

    def change(setting: Row) -> None:
        index.expansion_search = setting["expansion_search"]

    return Index(
        lambda vector: index.search(vector, DEPTH).keys,
        prepare=lambda query: query.dense,
        settings=[{"expansion_search": width} for width in _GRAPH_WIDTHS],
        set=change,
    )


def _scalable_vs(source: Source, build: Row) -> Index:
    """A Vamana graph over 16-bit vectors, or over LVQ codes, which the library has for Intel's processors alone."""
    svs, packed, parts = import_module("svs"), build["data"] != "float16", ("config", "graph", "data")

    def write(folder: Path) -> None:
        vectors: Any = source.vectors().astype(np.float16)
        if packed:
            raw = [str(folder / name) for name in ("raw.fvecs", "raw.svs")]
            svs.write_vecs(vectors.astype(np.float32), raw[0])
            svs.convert_vecs_to_svs(*raw, svs.DataType.float32)
            vectors = svs.LVQLoader(svs.VectorDataLoader(raw[1], svs.DataType.float32), primary=4, residual=8)
        plan = svs.VamanaBuildParameters(alpha=0.95, graph_max_degree=2 * _DEGREE, window_size=_EF_CONSTRUCTION)
        made = svs.Vamana.build(plan, vectors, svs.DistanceType.MIP)
        made.save(*(str(folder / part) for part in parts))

    config, graph, data = (str(source.built(f"vamana-{build['data']}", write) / part) for part in parts)
    loader = svs.LVQLoader(data) if packed else svs.VectorDataLoader(data, svs.DataType.float16)
    index = svs.Vamana(config, svs.GraphLoader(graph), loader, svs.DistanceType.MIP)

    def change(setting: Row) -> None:
        index.search_window_size = setting["search_window_size"]

    return Index(
        lambda vector: index.search(vector, DEPTH)[0][0],
        prepare=lambda query: query.dense[None],
        settings=[{"search_window_size": width} for width in _GRAPH_WIDTHS],
        set=change,
    )


def _products(documents: int, dimension: int) -> list[Row]:
    lists = lists_by_size(documents)
    return [{"factory": f"IVF{n},PQ{product_parts(dimension)}x4fsr,Refine(SQ8)"} for n in (lists, 2 * lists)]


def _rabitq(documents: int, dimension: int) -> list[Row]:
    """1, 2 and 4 bits a dimension, after a random rotation."""
    head = f"RR{dimension},IVF{lists_by_size(documents)},RaBitQfs"
    return [{"factory": f"{head}{bits},Refine(SQ8)"} for bits in ("", 2, 4)]


DENSE: Final = {
    "query-aware": Library("faiss-cpu", _faiss),
    "ivf-pq": Library("faiss-cpu", _faiss, _products),
    "hnsw": Library("faiss-cpu", _faiss, lambda documents, dimension: [{"factory": f"HNSW{_DEGREE},SQ8"}]),
    "rabitq": Library("faiss-cpu", _faiss, _rabitq),
    "usearch": Library("usearch", _usearch, lambda documents, dimension: [{"dtype": "f16"}, {"dtype": "i8"}]),
    "scalable-vs": Library(
        "scalable-vs", _scalable_vs, lambda documents, dimension: [{"data": "float16"}, {"data": "LVQ4x8"}]
    ),
}
"""Libraries by name."""
