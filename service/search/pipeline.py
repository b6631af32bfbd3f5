"""One search from the query to the answer: encode, search the legs at the same time, fuse, read the documents."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, ScoredDocuments
from lightretriever.service.errors import DeadlineError, SearchFailedError
from lightretriever.service.execution.executor import Outcome, Reason
from lightretriever.service.observability.metrics import Stage, StageClock
from lightretriever.service.schemas import LegName, LinearFusion
from lightretriever.service.search.explain import explained
from lightretriever.service.search.fusion import CandidateTable, Fused, align, fuse_linear, fuse_rrf
from lightretriever.service.search.hits import Fetched, Plain, list_facets, list_hits
from lightretriever.service.search.plan import DOCUMENTS, Parts, Plan
from lightretriever.service.search.snippets import add_snippets

__all__ = ["Search"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

# Shares of the deadline, counted from the arrival: what comes later keeps its time.
_LEGS_UNTIL: Final = 0.8
_RESCORE_UNTIL: Final = 0.9

# The times that every answer has.
_UNTIMED: Final = dict.fromkeys(("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"))


class Search:
    """One search under way."""

    def __init__(self, parts: Parts, plan: Plan, clock: StageClock) -> None:
        self.clock = clock
        self.missing: dict[LegName, Reason] = {}
        """Legs that should have answered and did not."""
        self.unscored: dict[LegName, Reason] = {}
        """Legs that answered, but did not score the other legs' candidates."""
        self._parts = parts
        self._plan = plan
        self._weights = plan.legs()

    def run(self) -> Plain:
        """Give what `SearchResponse` describes.

        NoTokensError or NoDirectionError if the query can't be encoded, DeadlineError or SearchFailedError if there is
        no answer to give.
        """
        if perf_counter() >= self._until(_LEGS_UNTIL):
            raise DeadlineError(
                f"The search had not begun {self.clock.total() * 1e3:.0f} ms after the request came, too late for its "
                f"deadline of {self._plan.deadline_ms:g} ms. Allow more time, or try again later."
            )
        query = self._encoded()
        found = self._found(query)
        legs = list(found)
        with self.clock.measure("fuse"):
            table = align(list(found.values()))
        self._rescore(query, table, legs)
        with self.clock.measure("fuse"):
            fused = self._fused(table, legs)
        request = self._plan.request
        page = fused.order[request.offset :][: request.k]
        return self._answer(query, table, legs, fused, page)

    def _encoded(self) -> EncodedQuery:
        request = self._plan.request
        if request.mode == "bm25":
            return EncodedQuery.of_text(request.query)
        return self._parts.encoder.encode(
            request.query,
            self._plan.task,
            self.clock,
            dense="dense" in self._weights,
            extra_terms=[(term.text, term.weight) for term in request.terms],
        )

    def _found(self, query: EncodedQuery) -> dict[LegName, ScoredDocuments]:
        """What the legs find, searched at the same time. DeadlineError or SearchFailedError if it is too little."""
        among = self._among()
        calls: dict[LegName, Callable[[], ScoredDocuments]] = {
            name: partial(self._parts.legs[name].search, query, self._plan.candidates, among) for name in self._weights
        }
        found = self._gather(calls, _LEGS_UNTIL, self.missing)
        if not found or (self.missing and not self._plan.request.allow_partial):
            self._give_up()
        return found

    def _among(self) -> DocumentFilter | None:
        """The documents that the request's filter leaves, None if it has none."""
        condition = self._plan.condition
        if condition is None:
            return None
        with self.clock.measure("filter"):
            kept = self._parts.filters.known(condition)
        if kept is not None:
            return kept
        outcome = self._parts.executor.call(
            DOCUMENTS, partial(self._parts.filters.where, condition), self._until(_LEGS_UNTIL)
        )
        return self._read("filter", outcome, _LEGS_UNTIL)

    def _rescore(self, query: EncodedQuery, table: CandidateTable, legs: list[LegName]) -> None:
        """Fill in each leg's true score of the documents that only other legs proposed. Scores that don't come in time
        stay unknown; the leg is not missing for that."""
        unknown = {name: table.missing(row) for row, name in enumerate(legs)}
        legs_of = self._parts.legs
        calls = {name: partial(legs_of[name].scores, query, which) for name, which in unknown.items() if which.size}
        if calls:
            for name, scores in self._gather(calls, _RESCORE_UNTIL, self.unscored, stage="rescore").items():
                table.fill(legs.index(name), scores)

    def _fused(self, table: CandidateTable, legs: list[LegName]) -> Fused:
        request = self._plan.request
        if request.mode != "hybrid":
            return Fused(np.argsort(table.ranks[0]), table.scores, table.scores[0])
        weights = [self._weights[name] for name in legs]
        if isinstance(request.fusion, LinearFusion):
            return fuse_linear(table, weights, request.fusion.normalization)
        return fuse_rrf(table, weights, request.fusion.rank_constant)

    def _answer(
        self, query: EncodedQuery, table: CandidateTable, legs: list[LegName], fused: Fused, page: npt.NDArray[np.intp]
    ) -> Plain:
        """Read the documents of the page, their facets and what explains them, and make the answer."""
        request, parts, ordinals = self._plan.request, self._parts, table.ordinals[page]
        reads: dict[str, tuple[str, Callable[[], Any]]] = {}
        if ordinals.size:
            reads["fetch"] = DOCUMENTS, partial(parts.documents.fetch, ordinals, self._fields())
        if request.facets:
            reads["facets"] = DOCUMENTS, partial(parts.documents.facets, request.facets, table.ordinals)
        if request.explain and ordinals.size:
            if "dense" in legs:
                query = parts.encoder.with_parts(query, self._plan.task)
            reads |= {name: (name, partial(parts.legs[name].shares, query, ordinals)) for name in legs}
        outcomes = parts.executor.gather(reads, self._until(1.0)) if reads else {}
        fetched: Fetched = self._read("fetch", outcomes["fetch"], 1.0) if "fetch" in outcomes else []
        hits = list_hits(table, legs, fused, page, fetched, request.offset)
        if request.snippets is not None and hits:
            with self.clock.measure("snippets"):
                arrived, deadline_ms = self.clock.arrived, self._plan.deadline_ms
                hits = add_snippets(hits, parts.encoder.tokenizer, query, request, arrived, deadline_ms)
        if request.explain and hits:
            shares = self._values({name: outcomes[name] for name in legs}, {}, "explain")
            hits = explained(hits, query, parts.encoder.tokenizer, fused.shares[:, page], legs, shares)
        facets = list_facets(self._read("facets", outcomes["facets"], 1.0)) if "facets" in outcomes else None
        return {
            "hits": hits,
            "degraded": sorted(self.missing),
            "mode": request.mode,
            "task": self._plan.task,
            "candidates": table.ordinals.size,
            **({} if facets is None else {"facets": facets}),
            "timings_ms": _UNTIMED | self.clock.milliseconds(),
        }

    def _fields(self) -> list[str] | None:
        """The fields to read: those to return, and those that snippets are made of."""
        request = self._plan.request
        if request.fields is None or request.snippets is None:
            return request.fields
        return [*request.fields, *request.snippets.fields]

    def _until(self, share: float) -> float:
        return self.clock.arrived + share * self._plan.deadline_ms / 1e3

    def _gather(
        self,
        calls: Mapping[LegName, Callable[[], T]],
        share: float,
        missing: dict[LegName, Reason],
        stage: Stage | None = None,
    ) -> dict[LegName, T]:
        """What legs answer until this share of the deadline; `missing` gets the reasons of the others."""
        in_lanes = {name: (name, function) for name, function in calls.items()}
        return self._values(self._parts.executor.gather(in_lanes, self._until(share)), missing, stage)

    def _values(
        self, outcomes: Mapping[Any, Outcome[T]], missing: dict[LegName, Reason], stage: Stage | None
    ) -> dict[LegName, T]:
        """The values of the legs' outcomes, whose times count for `stage`, or else for the leg's own."""
        values: dict[LegName, T] = {}
        for name, outcome in outcomes.items():
            if outcome.reason is None:
                values[name] = outcome.get()
                self.clock.took(stage or name, outcome.started, outcome.ended)
            else:
                missing[name] = outcome.reason
                if outcome.error is not None:
                    _log.error("leg failed", exc_info=outcome.error, extra=self._about(name))
        return values

    def _about(self, name: LegName) -> dict[str, str]:
        return {"leg": name, "backend": self._parts.legs[name].backend}

    def _read(self, stage: Stage, outcome: Outcome[T], share: float) -> T:
        """What was read for the answer, which needs it. DeadlineError, SearchFailedError."""
        if outcome.reason == "stuck":
            raise DeadlineError("The documents can't be read: all threads for it are held. Try later.")
        if outcome.reason == "late":
            raise DeadlineError(f"The documents were not read within {share * self._plan.deadline_ms:g} ms.")
        if outcome.error is not None:
            _log.error("documents failed", exc_info=outcome.error)
            raise SearchFailedError(
                "The documents found could not be read. The reason is in the log."
            ) from outcome.error
        self.clock.took(stage, outcome.started, outcome.ended)
        return outcome.get()

    def _give_up(self) -> None:
        failed = _named(self.missing, "failed")
        if failed:
            raise SearchFailedError(f"The leg {failed} failed. The reason is in the log; try again later.")
        stuck = _named(self.missing, "stuck")
        if stuck:
            raise DeadlineError(f"The leg {stuck} has no free thread: calls that don't end hold all. Try later.")
        late, share = _named(self.missing, "late"), self._plan.deadline_ms * _LEGS_UNTIL
        raise DeadlineError(
            f"No answer from the leg {late} within {share:g} ms, its share of the deadline. "
            "Allow more time, or fewer candidates."
        )


def _named(missing: Mapping[LegName, Reason], reason: Reason) -> str:
    return " and ".join(sorted(name for name, why in missing.items() if why == reason))
