"""The stages of a search, each by itself: a call for each query, of what the service runs for it.

    tokenize       text to token ids                      sparse     Lucene's best candidates
    encode_sparse  the same, and their counts and IDF     rescore    each leg's score of the other's candidates
    encode_dense   counted tokens to the mean of rows   fuse       two rankings to one
    encode         text to both query vectors             fetch      the first ten documents
    dense          Faiss' best candidates                 serialise  the answer as JSON

`tests/benchmarks` times all of them, `loadtest.instructions` counts those that don't run in Java.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from lightretriever.service.backends.legs import Found, Leg
from lightretriever.service.http.json import json_response
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.encoder import EncodedQuery, QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import Fused, align, fuse_linear
from lightretriever.service.search.plan import Parts

__all__ = ["CANDIDATES", "Calls", "Inputs", "calls_in_java", "calls_outside_java"]

CANDIDATES: Final = 100
_PAGE: Final = 10
_WEIGHTS: Final = (0.7, 0.3)

Calls = Mapping[str, Callable[[int], object]]
"""By stage, what it does for the query of a number."""


@dataclass(frozen=True)
class Inputs:
    """What the stages are given, by query: texts, what the dense and the sparse leg found, and the answers."""

    texts: Sequence[str]
    found: Sequence[tuple[Found, Found]]
    answers: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, engine: SearchEngine, texts: Sequence[str]) -> Self:
        """Search for the texts, NoTokensError or NoDirectionError for one that can't be encoded."""
        legs, task = engine.parts.legs, engine.bundle.manifest.default_task
        queries = [engine.parts.encoder.encode(text, task, StageClock()) for text in texts]
        found = [
            (legs["dense"].search(query, CANDIDATES), legs["sparse"].search(query, CANDIDATES)) for query in queries
        ]
        requests = (SearchRequest(query=text, k=_PAGE, candidates=CANDIDATES) for text in texts)
        return cls(texts, found, [engine.search(request).model_dump() for request in requests])

    def to_json(self) -> list[dict[str, Any]]:
        """The same for a file; scores are those of float32, which a float has room for."""
        return [
            {"text": text, "found": [[part.tolist() for part in leg] for leg in legs], "answer": answer}
            for text, legs, answer in zip(self.texts, self.found, self.answers, strict=True)
        ]

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Of what `to_json` gave."""
        found = [(_found(row["found"][0]), _found(row["found"][1])) for row in rows]
        return cls([row["text"] for row in rows], found, [row["answer"] for row in rows])


def calls_outside_java(encoder: QueryEncoder, task: str, dense: Leg, inputs: Inputs) -> Calls:
    """The stages that need no Java: tokenize, the three of encoding, dense, fuse and serialise."""
    table, texts = encoder.tables[task], inputs.texts
    queries = [encoder.encode(text, task, StageClock()) for text in texts]
    return {
        "tokenize": lambda number: encoder.tokenizer.token_ids(texts[number]),
        "encode_sparse": lambda number: encoder.encode(texts[number], task, StageClock(), dense=False),
        "encode_dense": lambda number: table.sums.direction(queries[number].terms, queries[number].factors),
        "encode": lambda number: encoder.encode(texts[number], task, StageClock()),
        "dense": lambda number: dense.search(queries[number], CANDIDATES),
        "fuse": lambda number: _fuse(inputs.found[number]),
        "serialise": lambda number: json_response(inputs.answers[number]),
    }


def calls_in_java(parts: Parts, task: str, inputs: Inputs) -> Calls:
    """The others: sparse, rescore, in which Faiss takes part, and fetch."""
    legs, found = (parts.legs["dense"], parts.legs["sparse"]), inputs.found
    queries = [parts.encoder.encode(text, task, StageClock()) for text in inputs.texts]
    pages = [align(one).ordinals[_fuse(one).order[:_PAGE]] for one in found]
    return {
        "sparse": lambda number: legs[1].search(queries[number], CANDIDATES),
        "rescore": lambda number: _rescore(found[number], legs, queries[number]),
        "fetch": lambda number: parts.documents.fetch(pages[number], None),
    }


def _found(columns: Sequence[Sequence[float]]) -> Found:
    return np.array(columns[0], np.int64), np.array(columns[1], np.float32)


def _fuse(found: tuple[Found, Found]) -> Fused:
    return fuse_linear(align(found), _WEIGHTS)


def _rescore(found: tuple[Found, Found], legs: Sequence[Leg], query: EncodedQuery) -> None:
    table = align(found)
    for row, leg in enumerate(legs):
        if (missing := table.missing(row)).size:
            table.fill(row, leg.scores(query, missing))
