"""How far the answers of a system are those of exact legs, so that speeds can be compared at equal quality."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.request import Request, urlopen

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.schemas import RrfFusion, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

__all__ = ["ExactAnswers", "overlap"]

_EFFORT: Final = {"k_factor_rf": 20.0, "efSearch": 4096.0}
_LISTS: Final = re.compile(r"IVF(\d+)")
_PATIENCE_MS: Final = 600_000.0


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
        manifest, dense = bundle.manifest, bundle.manifest.dense
        lists = _LISTS.search(dense.factory)
        most = _EFFORT if lists is None else {**_EFFORT, "nprobe": float(lists[1])}
        parameters = {name: most.get(name, value) for name, value in dense.parameters.items()}
        exact = manifest.model_copy(update={"dense": dense.model_copy(update={"parameters": parameters})})
        with SearchEngine.open(Bundle(bundle.path, exact), Settings(deadline_ms=_PATIENCE_MS)) as engine:

            def best(**options: Any) -> list[list[str]]:
                asked = (SearchRequest(query=query, k=k, **options) for query in queries)
                return [[hit.id for hit in engine.search(one).hits] for one in asked]

            return cls(queries, best(), best(fusion=RrfFusion(method="rrf")))


def overlap(url: str, queries: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Give the mean share of the expected ids, k for each query, that a server finds among its best k."""
    shares = []
    for query, ids in zip(queries, expected, strict=True):
        body = json.dumps({"query": query, "k": max(1, len(ids))}).encode()
        with urlopen(Request(f"{url}/search", body, {"content-type": "application/json"})) as answer:
            found = {hit["id"] for hit in json.load(answer)["hits"]}
        shares.append(len(found.intersection(ids)) / max(1, len(ids)))
    return sum(shares) / len(shares)
