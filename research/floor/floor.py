"""The floor: the service's plain hybrid search, as straight as it can be written with the same readers of a bundle.

    python -m research.floor.floor BUNDLE --port 0

It answers `POST /search` with the hits, scores and ranks of the service's defaults, in the event loop of plain uvicorn.
It has no limits, deadline, metrics or errors, and does not look for a document whose id or head query the query is.
"""

import sys
from argparse import Namespace
from typing import Final

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.artifacts.bundle.manifest import FEEDBACK
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import products
from lightretriever.artifacts.sparse.arguments import scores_of
from lightretriever.artifacts.sparse.jvm import start_jvm_to_search
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.program import ADDRESS, BUNDLE, program
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.fusion import align, evidence, fuse_linear, moved_query, word_share
from research.servers.minimal_server import serve

__all__ = ["Floor", "main"]

_CANDIDATES: Final = 100  # of each leg


class Floor:
    """Searches a bundle with a dense leg and a vocabulary of words. LoadError for another one."""

    def __init__(self, bundle: Bundle) -> None:
        start_jvm_to_search()
        manifest = bundle.manifest
        if manifest.dense is None or manifest.sparse.language is None:
            raise LoadError(f"{bundle.path}: the floor needs a dense leg and words.", remedy="Give another bundle.")
        self.task, self.language = manifest.default_task, manifest.sparse.language
        self.tokenizer, self.table = bundle.tokenizer(), bundle.table(self.task)
        self.sparse, self.dense, self.background = bundle.sparse(), bundle.dense(), bundle.background()
        fusion = manifest.fusion
        self.weights = [0.7, 0.3] if fusion is None else [fusion.dense, fusion.sparse]
        self.feedback = FEEDBACK if fusion is None else fusion.feedback

    def search(self, body: bytes) -> bytes:
        """Answer a request, both as JSON."""
        request = SearchRequest.model_validate(orjson.loads(body))
        text = request.query or ""
        ids, counts = np.unique(self.tokenizer.query_ids(text), return_counts=True)
        vector, _ = self.table.direction(ids, counts.astype(np.float32))
        nearest = self.dense.search(vector, _CANDIDATES)
        found = self.sparse.find(text, _CANDIDATES, nearest[0], language=self.language)
        table = align([nearest, (found.ordinals, found.scores)])
        vectors, shares = self.dense.vectors(table.ordinals), found.impacts.astype(np.float32) * found.weights
        dense, sparse = table.scores
        dense[:], sparse[:], most = products(vectors, vector), scores_of(shares), shares.max(axis=0)
        weights = np.array(self.weights)
        if self.background is not None:
            weights *= evidence(vector, self.background, dense, sparse, most)
            weights /= weights.sum()
        fused = fuse_linear(table, weights.tolist())
        scores, first = table.scores.copy(), fused.order[0]
        if self.feedback and sparse[first] > 0:
            weight = self.feedback * word_share(sparse[first], most)
            dense[:] = products(vectors, moved_query(vector, vectors[first], weight))
            fused = fuse_linear(table, weights.tolist())
        columns = fused.order[: request.k]
        legs = [
            [{"score": score, "rank": rank or None} for score, rank in zip(*cells, strict=True)]
            for cells in zip(scores[:, columns].tolist(), table.ranks[:, columns].tolist(), strict=True)
        ]
        documents, hits = self.sparse.documents(table.ordinals[columns]), []
        cells = zip(documents, fused.scores[columns].tolist(), *legs, strict=True)
        for rank, (document, score, of_dense, of_sparse) in enumerate(cells, start=1):
            fields = orjson.loads(document)
            hit = {"id": fields.pop("_id"), "rank": rank, "score": score, "dense": of_dense, "sparse": of_sparse}
            hits.append(hit | {"fields": fields})
        answer = {"hits": hits, "degraded": [], "mode": "hybrid", "task": self.task, "candidates": table.ordinals.size}
        return orjson.dumps(answer)


@program(BUNDLE, *ADDRESS)
def main(given: Namespace) -> None:
    """Serve until SIGTERM."""
    floor = Floor(Bundle.open(given.bundle))

    async def answer(request: Request) -> Response:
        return Response(floor.search(await request.body()), media_type="application/json")

    with floor.sparse:
        serve(answer, "the floor", given)


if __name__ == "__main__":
    sys.exit(main())
