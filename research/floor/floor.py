"""The floor: the service's plain hybrid search, as straight as it can be written with the same readers of a bundle.

    python -m research.floor.floor BUNDLE --port 0

It answers `POST /search` with the hits, scores and ranks of the service's defaults, in the event loop of plain uvicorn.
It has no limits, deadline, metrics or errors, and does not look for a document whose id or head query the query is.
"""

import sys
from argparse import Namespace
from collections import Counter
from typing import Final

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.artifacts.bundle.manifest import FEEDBACK
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import best_first, products
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.sparse.index import scores_of
from lightretriever.artifacts.sparse.jvm import SEARCH_HEAP_MB, start_jvm
from lightretriever.loadtest.program import ADDRESS, BUNDLE, program
from lightretriever.service.schemas import Normalization, SearchRequest
from lightretriever.service.search.fusion import align, evidence, fuse_again, fuse_linear, moved_query, word_share
from research.servers.minimal_server import serve

CANDIDATES: Final = 100
"""Of each leg."""


class Floor:
    """Searches a bundle with a dense leg and a vocabulary of words."""

    def __init__(self, bundle: Bundle) -> None:
        start_jvm(SEARCH_HEAP_MB)
        manifest = bundle.manifest
        self.task, self.language = manifest.default_task, manifest.sparse.language or "standard"
        self.tokenizer, self.table = bundle.tokenizer(), bundle.table(self.task)
        self.sparse, self.dense, self.background = bundle.sparse(), bundle.dense(), bundle.background()
        fusion = manifest.fusion
        self.weights = [0.7, 0.3] if fusion is None else [fusion.dense, fusion.sparse]
        self.feedback = FEEDBACK if fusion is None else fusion.feedback

    def vector(self, text: str) -> Float32Array:
        """Return the dense vector of a query."""
        tokens = Counter(self.tokenizer.query_ids(text))
        ids = sorted(tokens)
        counts = np.array([tokens[token] for token in ids], np.float32)
        return self.table.direction(np.array(ids, np.int32), counts)[0]

    def search(self, body: bytes) -> bytes:
        """Answer a request, both as JSON."""
        request = SearchRequest.model_validate(orjson.loads(body))
        text = request.query or ""
        vector = self.vector(text)
        nearest = self.dense.nearest(vector, CANDIDATES)
        found = self.sparse.find(text, CANDIDATES, nearest, language=self.language)
        documents, shares = found.documents, found.impacts.astype(np.float32) * found.weights
        vectors = self.dense.vectors(documents)
        dense = products(vectors, vector)
        ranked = best_first(nearest, dense[documents.searchsorted(nearest)], CANDIDATES)
        table = align([ranked, (found.ordinals, found.scores)])
        if table.ordinals.size < documents.size:  # documents as good as the last of the nearest
            kept = np.isin(documents, table.ordinals)
            vectors, dense, shares = vectors[kept], dense[kept], shares[kept]
        sparse, largest = scores_of(shares), shares.max(axis=0)
        table.scores[:] = dense, sparse
        weights = self.weights
        normalization: Normalization = "range" if self.background is None else "evidence"
        if self.background is not None:
            known = evidence(vector, self.background, table.scores[0], table.scores[1], largest)
            weighed = [weight * share for weight, share in zip(self.weights, known, strict=True)]
            weights = [weight / sum(weighed) for weight in weighed]
        fused = fuse_linear(table, weights, normalization)
        if self.feedback and sparse[first := fused.order[0]] > 0:
            weight = self.feedback * word_share(float(sparse[first]), largest)
            again = products(vectors, moved_query(vector, vectors[first], weight))
            fused = fuse_again(table, fused, weights, normalization, 0, again)
        columns = fused.order[: request.k]
        legs = [
            [{"score": score, "rank": rank or None} for score, rank in zip(*cells, strict=True)]
            for cells in zip(table.scores[:, columns].tolist(), table.ranks[:, columns].tolist(), strict=True)
        ]
        texts, hits = self.sparse.documents(table.ordinals[columns]), []
        cells = zip(texts, fused.scores[columns].tolist(), *legs, strict=True)
        for rank, (text, score, of_dense, of_sparse) in enumerate(cells, start=1):
            fields = orjson.loads(text)
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
