"""One search from the query to the answer: encode, search the legs in parallel, fuse, read the documents."""

import logging
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.backends.base import (
    DocumentFilter,
    DocumentsGoneError,
    EncodedQuery,
    Ordinals,
    ScoredDocuments,
)
from lightretriever.service.errors import DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.execution.executor import Reason
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName, LinearFusion
from lightretriever.service.search.documents import reading
from lightretriever.service.search.encoder import require_terms
from lightretriever.service.search.explain import check_explained, explained, query_words
from lightretriever.service.search.fusion import CandidateTable, Fused, align, fuse_linear, fuse_rrf
from lightretriever.service.search.hits import Plain, add_ranking, in_groups, list_hits
from lightretriever.service.search.legs import give_up, score_legs, search_legs
from lightretriever.service.search.matching import add_matched, best_match, thresholds_of
from lightretriever.service.search.plan import Parts, Plan
from lightretriever.service.search.ranking import Ranked, fields_to_rank, ranked
from lightretriever.service.search.rerank import RERANK
from lightretriever.service.search.snippets import add_snippets
from lightretriever.service.search.spelling import Typed, read_typed

__all__ = ["Search"]

_log = logging.getLogger(__name__)

# Shares of the deadline, counted from the arrival; they reserve time for the later stages.
_LEGS_UNTIL: Final = 0.8
_RESCORE_UNTIL: Final = 0.9
_RERANK_UNTIL: Final = 0.97
_ATTEMPTS: Final = 10  # to search while documents are deleted

# Every answer has these times.
_UNTIMED: Final = dict.fromkeys(("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"))


class Search:
    """One running search."""

    def __init__(self, parts: Parts, plan: Plan, clock: StageClock) -> None:
        self.clock = clock
        self.missing: dict[LegName | Literal["rerank"], Reason] = {}
        """Legs that did not answer, and the reranking model if it didn't."""
        self.unscored: dict[LegName, Reason] = {}
        """Legs that answered but did not score the other legs' candidates."""
        self._parts = parts
        self._plan = plan
        self._weights = {leg: weight for leg, weight in plan.legs().items() if leg in parts.legs}

    def run(self) -> Plain:
        """Give a `SearchResponse` as plain dictionaries.

        NoTokensError or NoDirectionError if the query can't be encoded, InvalidRequestError if it has too many tokens
        to be explained, DeadlineError, SearchFailedError or NotReadyError if there is no answer to give.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._run()
            except DocumentsGoneError:  # between two trips to a cluster
                self.missing.clear()
                self.unscored.clear()
        raise NotReadyError("Documents that the search found are deleted all the time. Try again later.")

    def _run(self) -> Plain:
        if perf_counter() >= self._until(_LEGS_UNTIL):
            raise DeadlineError(
                f"The search had not begun {self.clock.total() * 1e3:.0f} ms after the request came, too late for its "
                f"deadline of {self._plan.deadline_ms:g} ms. Allow more time, or try again later."
            )
        typed = self._typed()
        query = self._encoded()
        check_explained(self._plan.request, query, self._plan.max_explained)
        found = self._found(query)
        legs = list(found)
        with self.clock.measure("fuse"):
            table = align(list(found.values()))
        self._rescore(query, table, legs)
        with self.clock.measure("fuse"):
            fused = self._fused(table, legs)
        with self._parts.within(self._until(1.0)):
            return self._answer(query, table, legs, fused, self._ranked(table, fused)) | typed.facts()

    def _typed(self) -> Typed:
        """Search for the query as its words are corrected and completed, if the request asks for that."""
        request = self._plan.request
        if request.spelling is None and not request.prefix:
            return Typed(request.query, request.query)
        with self.clock.measure("spelling"), reading():
            typed = read_typed(request, self._parts.spellings, self._parts.encoder.tokenizer)
        self._plan = replace(self._plan, request=request.model_copy(update={"query": typed.searched}))
        return typed

    def _encoded(self) -> EncodedQuery:
        request = self._plan.request
        query = self._parts.encoder.encode(
            request.query,
            self._plan.task,
            self.clock,
            dense="dense" in self._weights,
            sparse="sparse" in self._weights or request.snippets is not None,
            extra_terms=[(term.text, term.weight) for term in request.terms],
        )
        if query.dense is None:
            self._weights.pop("dense", None)
        if not query.terms:
            self._weights.pop("sparse", None)
        require_terms(self._weights, "query", request.query)
        return query

    def _found(self, query: EncodedQuery) -> dict[LegName, ScoredDocuments]:
        """Search the legs in parallel. DeadlineError or SearchFailedError if too few answer."""
        found: dict[LegName, ScoredDocuments] = {}
        plan, among, until = self._plan, self._among(), self._until(_LEGS_UNTIL)
        outcomes = search_legs(self._parts, self._weights, query, plan.candidates, among, until)
        for name, outcome in outcomes.items():
            if outcome.reason is None:
                found[name] = outcome.get()
                self.clock.add(name, outcome.started, outcome.ended)
            else:
                self.missing[name] = outcome.reason
                if outcome.error is not None:
                    self._log_failure(name, outcome.error)
        if not found or (self.missing and not self._plan.request.allow_partial):
            errors = [outcome.error for outcome in outcomes.values()]
            give_up(self.missing, errors, self._plan.deadline_ms * _LEGS_UNTIL)
        return found

    def _among(self) -> DocumentFilter | None:
        """Give the documents that match the request's filter; None if it has none."""
        if self._plan.condition is None:
            return None
        with self.clock.measure("filter"):
            return self._parts.filters.where(self._plan.condition)

    def _rescore(self, query: EncodedQuery, table: CandidateTable, legs: list[LegName]) -> None:
        """Fill in each leg's true score of the documents that only other legs proposed. If it fails or there is no
        time, the scores stay unknown and `unscored` names the leg."""
        wanted = {name: which for row, name in enumerate(legs) if (which := table.missing(row)).size}
        if not wanted:
            return
        started, scored = perf_counter(), False
        for name, outcome in score_legs(self._parts, wanted, query, self._until(_RESCORE_UNTIL)).items():
            if outcome.reason is None:
                table.fill(legs.index(name), outcome.get())
                scored = True
                continue
            if isinstance(outcome.error, DocumentsGoneError):
                raise outcome.error
            self.unscored[name] = outcome.reason
            if outcome.error is not None:
                self._log_failure(name, outcome.error)
        if scored:
            self.clock.add("rescore", started)

    def _fused(self, table: CandidateTable, legs: list[LegName]) -> Fused:
        request = self._plan.request
        if request.mode != "hybrid":
            return Fused(np.argsort(table.ranks[0]), table.scores, table.scores[0])
        weights = [self._weights[name] for name in legs]
        if isinstance(request.fusion, LinearFusion):
            return fuse_linear(table, weights, request.fusion.normalization)
        return fuse_rrf(table, weights, request.fusion.rank_constant)

    def _ranked(self, table: CandidateTable, fused: Fused) -> Ranked:
        """Order the candidates by what else the request asks for."""
        request, parts = self._plan.request, self._parts
        names = fields_to_rank(request)
        if not names and not request.diversity and not self._plan.rerank:
            return Ranked(fused.order.tolist(), fused.scores, np.empty((0, fused.scores.size)))
        self._require_time("order the candidates")
        ordinals = table.ordinals[fused.order]
        with self.clock.measure("rank"):
            documents = parts.documents.fetch(ordinals, names) if names else []
            values = {name: [fields.get(name) for _, fields in documents] for name in names}
            vectors, require_time = partial(self._vectors, ordinals), partial(self._require_time, "diversify")
            kinds, rerank = self._plan.kinds, partial(self._reranked, table)
            return ranked(request, fused, values, kinds, vectors, rerank, require_time)

    def _vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        with reading():
            return self._parts.dense.vectors(ordinals)

    def _reranked(self, table: CandidateTable, columns: npt.NDArray[np.intp]) -> list[float]:
        """Ask the reranking model for the scores of the first columns; none if it is not to be asked, fails or is
        late."""
        parts, until = self._parts, self._until(_RERANK_UNTIL)
        if not self._plan.rerank or parts.reranker is None or not columns.size:
            return []
        documents = parts.documents.fetch(table.ordinals[columns[: parts.reranker.top]], ["title", "text"])
        texts = [fields for _, fields in documents]
        call = partial(parts.reranker.scores, self._plan.request.query, texts, until)
        outcome = parts.executor.gather({RERANK: call}, until)[RERANK]
        if outcome.reason is None:
            self.clock.add(RERANK, outcome.started, outcome.ended)
            return outcome.get()
        self.missing[RERANK] = outcome.reason
        if outcome.error is not None:
            _log.error("reranker failed", exc_info=outcome.error)
        if not self._plan.request.allow_partial:
            if outcome.reason == "failed":
                raise SearchFailedError("The reranking model failed; the log says why. Allow partial answers.")
            raise DeadlineError("The reranking model was too late. Allow partial answers, or more time.")
        return []

    def _answer(
        self, query: EncodedQuery, table: CandidateTable, legs: list[LegName], fused: Fused, ranking: Ranked
    ) -> Plain:
        """Read the page's documents, add snippets, explanations and facets, and make the answer."""
        request, parts = self._plan.request, self._parts
        window = slice(request.offset, request.offset + request.k)
        groups = None if ranking.groups is None else ranking.groups[window]
        columns = ranking.order[window] if groups is None else [one for group in groups for one in group.columns]
        page = np.array(columns, np.intp)
        ordinals = table.ordinals[page]
        self._require_time("read the documents")
        with self.clock.measure("fetch"):
            documents = parts.documents.fetch(ordinals, self._fields())
        thresholds = thresholds_of(self._plan.thresholds, request.query, query, table, legs, parts.encoder)
        hits = list_hits(table, legs, ranking.scores, page, documents, request.offset)
        hits = add_matched(hits, thresholds)
        if request.snippets is not None and hits:
            with self.clock.measure("snippets"):
                arrived, deadline_ms = self.clock.arrived, self._plan.deadline_ms
                hits = add_snippets(hits, parts.encoder.vocabulary, query, request, arrived, deadline_ms)
        if request.explain and hits:
            with self.clock.measure("explain"):
                shares = self._shares(query, legs, ordinals)
                added, require_time = fused.shares[:, page], partial(self._require_time, "explain the hits")
                words = query_words(request, query, parts.encoder)
                read = parts.documents.fetch(ordinals, ["title", "text"])
                texts = [document_text(*(str(one.get(name) or "") for name in ("title", "text"))) for _, one in read]
                hits = explained(hits, query, words, parts.encoder, added, legs, shares, texts, require_time)
        hits = add_ranking(hits, ranking, columns)
        facets = None
        if request.facets:
            self._require_time("count the facets")
            with self.clock.measure("facets"):
                facets = parts.documents.facets(request.facets, table.ordinals)
        return {
            "hits": hits if groups is None else in_groups(hits, groups, request.offset),
            "degraded": sorted(self.missing),
            "mode": request.mode,
            "task": self._plan.task,
            "candidates": table.ordinals.size,
            **best_match(table, legs, thresholds),
            **({"head_query": query.head} if self._plan.task in parts.encoder.heads else {}),
            **({} if facets is None else {"facets": facets}),
            "timings_ms": _UNTIMED | self.clock.milliseconds(),
        }

    def _fields(self) -> list[str] | None:
        """Give the fields to read: those to return and those of the snippets."""
        request = self._plan.request
        if request.fields is None or request.snippets is None:
            return request.fields
        return [*request.fields, *request.snippets.fields]

    def _until(self, share: float) -> float:
        return self.clock.arrived + share * self._plan.deadline_ms / 1e3

    def _require_time(self, task: str) -> None:
        if perf_counter() >= self._until(1.0):
            raise DeadlineError(
                f"There was no time left to {task} within {self._plan.deadline_ms:g} ms. "
                "Allow more time, or ask for less."
            )

    def _shares(
        self, query: EncodedQuery, legs: list[LegName], ordinals: Ordinals
    ) -> dict[LegName, npt.NDArray[np.float32]]:
        """Give each term's share of each leg's score, without the legs that fail, and without the dense leg of a head
        query."""
        if query.head:
            legs = [name for name in legs if name != "dense"]
        elif "dense" in legs:
            query = self._parts.encoder.with_parts(query, self._plan.task)
        shares = {}
        for name in legs:
            try:
                shares[name] = self._parts.legs[name].shares(query, ordinals)
            except DocumentsGoneError:
                raise
            except TimeoutError as error:
                raise DeadlineError("There was no time left to explain the hits. Allow more time.") from error
            except Exception as error:
                self._log_failure(name, error)
        return shares

    def _log_failure(self, name: LegName, error: BaseException) -> None:
        _log.error("leg failed", exc_info=error, extra={"leg": name, "backend": self._parts.legs[name].backend})
