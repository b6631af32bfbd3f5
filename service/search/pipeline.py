"""One search from the query to the answer, as the steps of a job."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.sparse.index import DocumentSet
from lightretriever.service.backends.legs import Found
from lightretriever.service.errors import DeadlineError, SearchFailedError
from lightretriever.service.execution.jobs import Steps
from lightretriever.service.execution.lanes import Call, LateError, StuckError
from lightretriever.service.observability.metrics import Stage, StageClock
from lightretriever.service.schemas import LegName, LinearFusion, Snippet, SnippetRequest
from lightretriever.service.search.encoder import EncodedQuery
from lightretriever.service.search.explain import explained
from lightretriever.service.search.fusion import CandidateTable, Fused, align, fuse_linear, fuse_rrf
from lightretriever.service.search.hits import Counts, Fetched, Plain, list_facets, list_hits
from lightretriever.service.search.plan import Parts, Plan
from lightretriever.service.search.snippets import Snippets

__all__ = ["Reason", "Search"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Reason = Literal["late", "stuck", "failed"]
"""Why a leg is missing: too slow, without a free thread, or with an error."""

# Shares of the deadline, from the arrival: what comes later keeps its time.
_LEGS_UNTIL: Final = 0.8
_RESCORE_UNTIL: Final = 0.9

# The times that every answer tells.
_UNTIMED: Final = dict.fromkeys(("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"))


class Search:
    """One search under way."""

    def __init__(self, parts: Parts, plan: Plan, clock: StageClock) -> None:
        self.clock = clock
        self.missing: dict[LegName, Reason] = {}
        """Legs that should have answered and did not."""
        self.unscored: dict[LegName, Reason] = {}
        """Legs that answered, but did not score the other one's candidates."""
        self._parts = parts
        self._plan = plan
        self._weights = plan.legs()
        self._query: EncodedQuery

    def steps(self) -> Steps[Plain]:
        """Encode, search, fuse, fetch; gives what `SearchResponse` describes. NoTokensError or NoDirectionError if the
        query can't be encoded, DeadlineError or SearchFailedError if there is no answer to give."""
        if perf_counter() >= self._until(_LEGS_UNTIL):
            raise DeadlineError(
                f"The search had not begun {self.clock.total() * 1e3:.0f} ms after the request came, too late for its "
                f"deadline of {self._plan.deadline_ms:g} ms. Allow more time, or try again later."
            )
        self._query = self._encoded()
        found = yield from self._find()
        names = list(found)
        with self.clock.measure("fuse"):
            table = align(list(found.values()))
        rescoring = self._rescoring(table, names)
        if self._ranks_by_all_scores():
            yield list(rescoring.values())
            self._fill(table, names, rescoring)
            rescoring = {}
        with self.clock.measure("fuse"):
            fused = self._fuse(table, names)
        page = fused.order[self._plan.request.offset :][: self._plan.request.k]
        fetching, counting = self._fetching(table.ordinals[page]), self._counting(table.ordinals)
        explaining = self._explaining(table.ordinals[page], names)
        reading = [call for call in (fetching, counting) if call is not None]
        yield [*rescoring.values(), *reading, *explaining.values()]
        self._fill(table, names, rescoring)
        fetched = self._read("fetch", fetching) or []
        hits = self._with_snippets(list_hits(table, names, fused, page, fetched, self._plan.request.offset))
        if self._plan.request.explain:
            shares = self._shares(explaining)
            hits = explained(hits, self._query, self._parts.encoder.tokenizer, fused.shares[:, page], names, shares)
        return self._answer(table, hits, self._read("facets", counting))

    def _find(self) -> Steps[dict[LegName, Found]]:
        """What the legs find. DeadlineError or SearchFailedError if it is not enough for an answer."""
        searches: dict[LegName, tuple[Callable[..., Found], object]] = {
            name: (self._parts.legs[name].search, self._plan.candidates) for name in self._weights
        }
        if self._plan.condition is not None:
            among = yield from self._where(self._plan.condition)
            searches = {name: (partial(search, among=among), count) for name, (search, count) in searches.items()}
        calls = self._ask(searches, _LEGS_UNTIL, self.missing)
        yield list(calls.values())
        found: dict[LegName, Found] = {}
        for name, (value, started, ended) in self._answered(calls, self.missing).items():
            found[name] = value
            self.clock.took(name, started, ended)
        if not found or (self.missing and not self._plan.request.allow_partial):
            self._give_up()
        return found

    def _encoded(self) -> EncodedQuery:
        request = self._plan.request
        if request.mode == "bm25":
            return EncodedQuery.of_words(request.query)
        return self._parts.encoder.encode(
            request.query,
            self._plan.task,
            self.clock,
            dense="dense" in self._weights,
            further=[(term.text, term.weight) for term in request.terms],
        )

    def _where(self, condition: tuple[str, ...]) -> Steps[DocumentSet]:
        """The documents that the filter leaves. DeadlineError or SearchFailedError if that can't be said."""
        filters = self._parts.filters
        with self.clock.measure("filter"):
            kept = filters.known(condition)
            if kept is None:
                call = self._reading(_LEGS_UNTIL, filters.where, condition)
                yield [call]
                kept = self._result(call, _LEGS_UNTIL)[0]
        return kept

    def _until(self, share: float) -> float:
        return self.clock.arrived + share * self._plan.deadline_ms / 1e3

    def _ask(
        self,
        questions: Mapping[LegName, tuple[Callable[..., _T], object]],
        share: float,
        missing: dict[LegName, Reason],
    ) -> dict[LegName, Call[_T]]:
        """The calls that ask each leg a question, to be answered by this share of the deadline; `missing` gets the legs
        whose lane is stuck."""
        calls: dict[LegName, Call[_T]] = {}
        for name, (do, what) in questions.items():
            try:
                calls[name] = self._parts.lanes[name].call(self._until(share), do, self._query, what)
            except StuckError:
                missing[name] = "stuck"
        return calls

    def _answered(
        self, calls: Mapping[LegName, Call[_T]], missing: dict[LegName, Reason]
    ) -> dict[LegName, tuple[_T, float, float]]:
        """Give what the legs answered, and from when to when they worked on it; `missing` gets the others."""
        results: dict[LegName, tuple[_T, float, float]] = {}
        for name, call in calls.items():
            try:
                results[name] = call.result()
            except LateError:
                missing[name] = "late"
            except Exception:
                _log.exception("leg failed", extra={"leg": name})
                missing[name] = "failed"
        return results

    def _ranks_by_all_scores(self) -> bool:
        """Tell whether the ranking depends on a leg's scores of the other one's candidates."""
        fusion = self._plan.request.fusion
        return isinstance(fusion, LinearFusion) and fusion.normalization == "range"

    def _rescoring(self, table: CandidateTable, names: list[LegName]) -> dict[LegName, Call[Any]]:
        """Ask each leg for its true score of the documents that only the other one proposed."""
        missing = {name: table.missing(row) for row, name in enumerate(names)}
        questions = {name: (self._parts.legs[name].scores, which) for name, which in missing.items() if which.size}
        calls = self._ask(questions, _RESCORE_UNTIL, self.unscored)
        for call in calls.values():
            call.brief = True  # a hundred inner products, a hundred times a dozen lists
        return calls

    def _fill(self, table: CandidateTable, names: list[LegName], calls: Mapping[LegName, Call[Any]]) -> None:
        """Take over the scores there are; the others stay unknown, and the leg is not missing for that."""
        for name, (scores, started, ended) in self._answered(calls, self.unscored).items():
            table.fill(names.index(name), scores)
            self.clock.took("rescore", started, ended)

    def _fuse(self, table: CandidateTable, names: list[LegName]) -> Fused:
        request = self._plan.request
        if request.mode != "hybrid":
            return Fused(np.argsort(table.ranks[0]), table.scores, table.scores[0])
        weights = [self._weights[name] for name in names]
        if isinstance(request.fusion, LinearFusion):
            return fuse_linear(table, weights, request.fusion.normalization)
        return fuse_rrf(table, weights, request.fusion.rank_constant)

    def _fetching(self, ordinals: npt.NDArray[np.int64]) -> Call[Fetched] | None:
        if ordinals.size == 0:
            return None
        request = self._plan.request
        fields = request.fields
        if fields is not None and request.snippets is not None:
            fields = [*fields, *request.snippets.fields]
        return self._reading(1.0, self._parts.documents.fetch, ordinals, fields)

    def _counting(self, ordinals: npt.NDArray[np.int64]) -> Call[Counts] | None:
        fields = self._plan.request.facets
        return self._reading(1.0, self._parts.documents.counts, fields, ordinals) if fields else None

    def _reading(self, share: float, read: Callable[..., _T], *arguments: object) -> Call[_T]:
        """A call that reads, by this share of the deadline, what is needed for any answer."""
        try:
            return self._parts.lanes["documents"].call(self._until(share), read, *arguments)
        except StuckError as error:
            raise DeadlineError("The documents can't be read: all threads for it are held. Try later.") from error

    def _result(self, call: Call[_T], share: float) -> tuple[_T, float, float]:
        """What was read by a share of the deadline. DeadlineError, SearchFailedError."""
        try:
            return call.result()
        except LateError as error:
            late = share * self._plan.deadline_ms
            raise DeadlineError(f"The documents were not read within {late:g} ms.") from error
        except Exception as error:
            _log.exception("documents failed")
            raise SearchFailedError("The documents found could not be read. The reason is in the log.") from error

    def _read(self, stage: Stage, call: Call[_T] | None) -> _T | None:
        if call is None:
            return None
        value, started, ended = self._result(call, 1.0)
        self.clock.took(stage, started, ended)
        return value

    def _explaining(self, ordinals: npt.NDArray[np.int64], names: list[LegName]) -> dict[LegName, Call[Any]]:
        if not self._plan.request.explain or ordinals.size == 0:
            return {}
        if "dense" in names:
            self._query = self._parts.encoder.with_parts(self._query, self._plan.task)
        return self._ask({name: (self._parts.legs[name].shares, ordinals) for name in names}, 1.0, {})

    def _with_snippets(self, hits: list[Plain]) -> list[Plain]:
        request = self._plan.request
        if request.snippets is None or not hits:
            return hits
        with self.clock.measure("snippets"):
            texts = [request.query, *(term.text for term in request.terms if term.weight > 0)]
            snippets = Snippets(self._parts.encoder.tokenizer, self._query, texts)
            return [self._with_snippet(hit, snippets, request.snippets) for hit in hits]

    def _with_snippet(self, hit: Plain, snippets: Snippets, asked: SnippetRequest) -> Plain:
        found: dict[str, Snippet] = {}
        fields: dict[str, Any] = hit["fields"]
        for name in asked.fields:
            if perf_counter() >= self._until(1.0):
                late = f"The snippets were not made within {self._plan.deadline_ms:g} ms."
                raise DeadlineError(f"{late} Ask for fewer hits or fields.")
            if isinstance(text := fields.get(name), str):
                found[name] = snippets.one(text, asked.length)
        wanted = self._plan.request.fields
        if wanted is not None:
            fields = {name: fields[name] for name in wanted if name in fields}
        return hit | {"fields": fields, "snippets": found}

    def _shares(self, calls: Mapping[LegName, Call[Any]]) -> dict[LegName, npt.NDArray[np.float32]]:
        """What each leg's scores of the hits are made of; a leg that does not say so in time is left out."""
        shares: dict[LegName, npt.NDArray[np.float32]] = {}
        for name, (value, started, ended) in self._answered(calls, {}).items():
            shares[name] = value
            self.clock.took("explain", started, ended)
        return shares

    def _answer(self, table: CandidateTable, hits: list[Plain], counts: Counts | None) -> Plain:
        return {
            "hits": hits,
            "degraded": sorted(self.missing),
            "mode": self._plan.request.mode,
            "task": self._plan.task,
            "candidates": table.ordinals.size,
            **({} if counts is None else {"facets": list_facets(counts)}),
            "timings_ms": _UNTIMED | self.clock.milliseconds(),
        }

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
