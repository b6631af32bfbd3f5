"""One search from the query to the answer. `begin` sets both legs going, `finish` waits, fuses and fetches."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np

from service.documents import Documents
from service.encoder import EncodedQuery, QueryEncoder
from service.errors import DeadlineError, SearchFailedError
from service.fusion import CandidateTable, Fused, align, fuse_linear, fuse_rrf
from service.lanes import Call, Lane, LateError
from service.legs import Found, Leg
from service.schemas import Hit, LegName, LegScore, LinearFusion, SearchRequest, SearchResponse, Timings
from service.telemetry import StageClock

__all__ = ["Parts", "Plan", "Reason", "Search"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Reason = Literal["late", "failed"]
"""Why a leg is missing in an answer."""

_LEGS_SHARE: Final = 0.8  # of the deadline; the rest is for fusion and documents


@dataclass(frozen=True, slots=True)
class Parts:
    """What searches are made of. Lanes are named like the legs, and "documents"."""

    encoder: QueryEncoder
    legs: dict[LegName, Leg]
    documents: Documents
    lanes: Mapping[str, Lane]


@dataclass(frozen=True, slots=True)
class Plan:
    """A search whose defaults are filled in: name of the task, candidates per leg, milliseconds from the arrival."""

    request: SearchRequest
    task: str
    candidates: int
    deadline_ms: float

    def legs(self) -> dict[LegName, float]:
        """Give the legs to search with their weights; a leg of weight 0 is not searched."""
        if self.request.mode != "hybrid":
            return {self.request.mode: 1.0}
        weights = self.request.fusion.weights
        both: dict[LegName, float] = {"dense": weights.dense, "sparse": weights.sparse}
        return {leg: weight for leg, weight in both.items() if weight > 0}


class Search:
    """One search under way."""

    def __init__(self, parts: Parts, plan: Plan, clock: StageClock) -> None:
        self.clock = clock
        self.missing: dict[LegName, Reason] = {}
        """Legs that should have answered and did not."""
        self._parts = parts
        self._plan = plan
        self._weights = plan.legs()
        self._legs_until = clock.arrived + plan.deadline_ms * _LEGS_SHARE / 1e3
        self._until = clock.arrived + plan.deadline_ms / 1e3
        self._query: EncodedQuery
        self._calls: dict[LegName, Call[Found]] = {}

    def begin(self) -> Self:
        """Encode the query and set the legs going. NoTokensError or NoDirectionError if it can't be encoded."""
        if perf_counter() >= self._legs_until:
            raise DeadlineError(
                f"The request waited {self.clock.total() * 1e3:.0f} ms before its turn came. Try later."
            )
        request = self._plan.request
        self._query = self._parts.encoder.encode(
            request.query, self._plan.task, self.clock, dense="dense" in self._weights
        )
        for name in self._weights:
            self._begin_leg(name, self._calls, self._parts.legs[name].search, self._plan.candidates)
        return self

    def finish(self) -> SearchResponse:
        """Wait for the legs, fuse, fetch. DeadlineError or SearchFailedError if there is no answer to give."""
        found = self._wait(self._calls, self._legs_until, timed=True)
        if not found:
            self._give_up()
        with self.clock.measure("fuse"):
            names = list(found)
            table = align([found[name] for name in names])
            self._fill(table, names)
            fused = self._fuse(table, names)
        if self.missing and not self._plan.request.allow_partial:
            self._give_up()
        return self._answer(table, names, fused)

    def _begin_leg(self, name: LegName, calls: dict[LegName, Call[_T]], do: Callable[..., _T], what: object) -> None:
        try:
            calls[name] = self._parts.lanes[name].call(do, self._query, what)
        except LateError:
            self.missing[name] = "late"

    def _wait(self, calls: Mapping[LegName, Call[_T]], until: float, *, timed: bool = False) -> dict[LegName, _T]:
        results: dict[LegName, _T] = {}
        for name, call in calls.items():
            try:
                results[name], seconds = call.result(until)
            except LateError:
                self.missing[name] = "late"
            except Exception:
                _log.exception("leg failed", extra={"leg": name})
                self.missing[name] = "failed"
            else:
                if timed:
                    self.clock.seconds[name] = seconds
        return results

    def _fill(self, table: CandidateTable, names: list[LegName]) -> None:
        """Ask each leg for its true score of the documents that only the other one proposed."""
        calls: dict[LegName, Call[Any]] = {}
        for row, name in enumerate(names):
            missing = table.missing(row)
            if missing.size:
                self._begin_leg(name, calls, self._parts.legs[name].scores, missing)
        for name, scores in self._wait(calls, self._until).items():
            table.fill(names.index(name), scores)

    def _fuse(self, table: CandidateTable, names: list[LegName]) -> Fused:
        request = self._plan.request
        if request.mode != "hybrid":
            return Fused(np.argsort(table.ranks[0]), table.scores[0])
        weights = [self._weights[name] for name in names]
        if isinstance(request.fusion, LinearFusion):
            return fuse_linear(table, weights, request.fusion.normalization)
        return fuse_rrf(table, weights, request.fusion.rank_constant)

    def _answer(self, table: CandidateTable, names: list[LegName], fused: Fused) -> SearchResponse:
        request = self._plan.request
        page = fused.order[request.offset : request.offset + request.k]
        with self.clock.measure("fetch"):
            fetched = self._fetch(table.ordinals[page]) if page.size else []
        hits = []
        for position, (column, (document_id, fields)) in enumerate(zip(page.tolist(), fetched, strict=True)):
            legs = {name: _leg_score(table, row, column) for row, name in enumerate(names)}
            hits.append(
                Hit(
                    id=document_id,
                    rank=request.offset + position + 1,
                    score=float(fused.scores[column]),
                    dense=legs.get("dense"),
                    sparse=legs.get("sparse"),
                    fields=fields,
                )
            )
        return SearchResponse(
            hits=hits,
            degraded=sorted(self.missing),
            mode=request.mode,
            task=self._plan.task,
            candidates=table.ordinals.size,
            timings_ms=Timings(**self.clock.milliseconds()),
        )

    def _fetch(self, ordinals: Any) -> list[tuple[str, dict[str, Any]]]:  # noqa: ANN401
        documents = self._parts.documents
        try:
            call = self._parts.lanes["documents"].call(documents.fetch, ordinals, self._plan.request.fields)
            return call.result(self._until)[0]
        except LateError as error:
            raise DeadlineError(f"The documents were not read within {self._plan.deadline_ms:g} ms.") from error
        except Exception as error:
            _log.exception("documents failed")
            raise SearchFailedError("The documents found could not be read. The reason is in the log.") from error

    def _give_up(self) -> None:
        names = " and ".join(sorted(self.missing))
        if "late" in self.missing.values():
            raise DeadlineError(
                f"No answer from the leg {names} within {self._plan.deadline_ms * _LEGS_SHARE:g} ms. "
                "Allow more time, fewer candidates, or partial answers."
            )
        raise SearchFailedError(f"The leg {names} failed. The reason is in the log; try again later.")


def _leg_score(table: CandidateTable, row: int, column: int) -> LegScore | None:
    score, rank = float(table.scores[row, column]), int(table.ranks[row, column])
    return None if np.isnan(score) else LegScore(score=score, rank=rank or None)
