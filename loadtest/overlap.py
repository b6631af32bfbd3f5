"""How good a system's answers are, so that speeds are compared at equal quality: overlap with exact ones, nDCG@10."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.request import Request, urlopen

from lightretriever.artifacts.bundle.manifest import DenseInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.evaluation.runs import JudgedQueries, ndcg_per_query
from lightretriever.service.schemas import RrfFusion, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

__all__ = ["ExactAnswers", "dense_info", "ndcg", "overlap"]

_EFFORT: Final = {"k_factor_rf": 20.0, "efSearch": 4096.0}
_LISTS: Final = re.compile(r"IVF(\d+)")
_PATIENCE_MS: Final = 600_000.0
_DEPTH: Final = 10


@dataclass(frozen=True)
class ExactAnswers:
    """The ids of the best k documents for some queries, by both legs searched exhaustively, and fused as the service
    does by default (`default`) and by reciprocal ranks (`rrf`)."""

    queries: Sequence[str]
    default: list[list[str]]
    rrf: list[list[str]]

    @classmethod
    def of(cls, bundle: Bundle, queries: Sequence[str], k: int) -> "ExactAnswers":
        """Search a bundle. LightRetrieverError."""
        manifest, dense = bundle.manifest, dense_info(bundle)
        lists = _LISTS.search(dense.factory)
        most = _EFFORT if lists is None else {**_EFFORT, "nprobe": float(lists[1])}
        parameters = {name: most.get(name, value) for name, value in dense.parameters.items()}
        exact = manifest.model_copy(update={"dense": dense.model_copy(update={"parameters": parameters})})
        with SearchEngine.open(Bundle(bundle.path, exact), Settings(deadline_ms=_PATIENCE_MS)) as engine:

            def best(**options: Any) -> list[list[str]]:
                asked = (SearchRequest(query=query, k=k, **options) for query in queries)
                return [[hit.id for hit in engine.search(one).hits] for one in asked]

            return cls(queries, best(), best(fusion=RrfFusion(method="rrf")))


def dense_info(bundle: Bundle) -> DenseInfo:
    """Give what the manifest says of the dense leg. Raises BundleError for a bundle without one."""
    if bundle.manifest.dense is None:
        raise BundleError(f"{bundle.path}: the bundle has no dense leg.", remedy="Build one with index.dense: true.")
    return bundle.manifest.dense


def overlap(url: str, queries: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Give the mean share of the expected ids, k for each query, that a server finds among its best k."""
    shares = [
        len({*_found(url, query, max(1, len(ids)))}.intersection(ids)) / max(1, len(ids))
        for query, ids in zip(queries, expected, strict=True)
    ]
    return sum(shares) / len(shares)


def ndcg(url: str, judged: JudgedQueries) -> float:
    """Give the mean nDCG@10 of a server's answers to judged queries."""
    run = {
        number: [(name, float(-rank)) for rank, name in enumerate(_found(url, text, _DEPTH))]
        for number, text in judged.queries.items()
    }
    values = ndcg_per_query(judged.qrels, run).values()
    return sum(values) / len(values)


def _found(url: str, query: str, k: int) -> list[str]:
    """Ask a server for the ids of the best k documents."""
    body = json.dumps({"query": query, "k": k}).encode()
    with urlopen(Request(f"{url}/search", body, {"content-type": "application/json"})) as answer:
        return [hit["id"] for hit in json.load(answer)["hits"]]
