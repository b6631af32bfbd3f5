"""One search, from the query to the answer: encode, search the legs in parallel, fuse, rank, read the documents."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import Any, Final, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.arguments import scores_of
from lightretriever.service.backends.base import (
    DocumentsGoneError,
    EncodedQuery,
    Ordinals,
    ScoredDocuments,
    UnavailableError,
)
from lightretriever.service.errors import UNAVAILABLE, DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.execution.executor import Outcome, Reason
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName, LinearFusion, Plain
from lightretriever.service.search.answer import Found, Running, build_answer, build_listing
from lightretriever.service.search.documents import reading
from lightretriever.service.search.encoder import require_terms
from lightretriever.service.search.explain import check_explained
from lightretriever.service.search.fusion import (
    CandidateTable,
    Fused,
    align,
    fuse_linear,
    fuse_rrf,
    moved_query,
    with_documents,
    with_feedback,
    word_share,
)
from lightretriever.service.search.matching import LEVELS, Levels, Shares, matches
from lightretriever.service.search.parts import Parts
from lightretriever.service.search.ranking import RERANK, Ranked, fields_to_rank, ranked
from lightretriever.service.search.request import Plan
from lightretriever.service.search.rules import AppliedRules
from lightretriever.service.search.words import Typed, read_typed

__all__ = ["Search"]

_log = logging.getLogger(__name__)

# Shares of the deadline, counted from the arrival; they reserve time for the later stages.
_LEGS_UNTIL: Final = 0.8
_RESCORE_UNTIL: Final = 0.9
_RERANK_UNTIL: Final = 0.97
_RERANK_PATIENCE: Final = 0.25  # of the time left, for a turn
_ATTEMPTS: Final = 10  # to search while documents are deleted


class Search(Running):
    """One running search of a checked request."""

    def __init__(self, parts: Parts, plan: Plan, clock: StageClock) -> None:
        self.missing: dict[LegName | Literal["rerank"], Reason] = {}
        """Legs that did not answer, and the reranking model if it didn't."""
        self.unscored: dict[LegName, Reason] = {}
        """Legs that answered but did not score the other legs' candidates."""
        super().__init__(parts, plan, clock)
        self._rules: AppliedRules | None = None
        self._thresholds = plan.thresholds

    def run(self) -> Plain:
        """Give a `SearchResponse` as plain dictionaries.

        NoTokensError or NoDirectionError if the query can't be encoded, InvalidRequestError if it has too many tokens
        to be explained, DeadlineError, SearchFailedError or NotReadyError if there is no answer to give.
        """
        request = self.plan.request
        if perf_counter() >= self.until(_LEGS_UNTIL):
            raise DeadlineError(
                f"The search had not begun {self.clock.total() * 1e3:.0f} ms after the request came, too late for its "
                f"deadline of {self.plan.deadline_ms:g} ms. Allow more time, or try again later."
            )
        if request.query is None:
            return self._answered(self._list)
        typed = self._typed(request.query)
        if self.parts.rules is not None:
            self._rules = self.parts.rules.apply(typed.searched)
        extra_terms = self._extra_terms(typed)
        query, legs = self._encoded(typed, extra_terms)
        if query.head or (self._rules is not None and self._rules.synonyms):
            self._thresholds = None  # they hold for sums over the query's own tokens
        if request.explain:
            check_explained(request, query, self.plan.max_explained)
        return self._answered(partial(self._search, typed, extra_terms, query, legs))

    def _answered(self, answer: Callable[[], Plain]) -> Plain:
        """Answer, anew if documents were deleted meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                return answer()
            except DocumentsGoneError:  # between two trips to a cluster
                self.missing.clear()
                self.unscored.clear()
        raise NotReadyError("Documents that the search found are deleted all the time. Try again later.")

    def _search(
        self, typed: Typed, extra_terms: Sequence[tuple[str, float]], query: EncodedQuery, known: Sequence[LegName]
    ) -> Plain:
        """Search for an encoded query in the legs that know something of it, and answer. DocumentsGoneError if a
        document was deleted meanwhile."""
        candidates = self._candidates(query, known)
        legs, pinned = list(candidates), {} if self._rules is None else self._pinned(self._rules)
        with self.clock.measure("fuse"):
            table = with_documents(align(list(candidates.values())), list(pinned.values()))
        shares = cache(partial(self._shares_to_judge, query, table.ordinals))
        with self.parts.backends.within(self.until()):
            self._score(query, table, legs, shares)
            with self.clock.measure("fuse"):
                fused = self._with_feedback(self._fused(table, legs), query, table, legs, shares)
                levels = matches(self._thresholds, typed.searched, table, legs, self.parts.encoder, shares)
            columns = np.searchsorted(table.ordinals, list(pinned.values())).tolist() if pinned else []
            fused = _with_columns(fused, columns) if pinned else fused
            fused, unmatched = self._matching(fused, levels, legs, columns)
            ranking = self._ranked(typed.searched, table, fused, columns)
            found = Found(
                typed,
                query,
                extra_terms,
                legs,
                table,
                fused,
                levels,
                unmatched,
                ranking,
                self._rules,
                pinned=list(pinned),
                degraded=sorted(self.missing),
            )
            return build_answer(self, found, partial(self._shares, query, legs))

    def _typed(self, query: str) -> Typed:
        """Give the text to search for: the query, its words corrected and completed where the request asks for that."""
        request, spellings = self.plan.request, self.parts.backends.spellings
        if spellings is None or not (request.spelling or request.prefix):
            return Typed(query, query)
        with self.clock.measure("spelling"), reading():
            return read_typed(query, request, spellings, self.parts.encoder, self.plan.task)

    def _encoded(self, typed: Typed, extra_terms: Sequence[tuple[str, float]]) -> tuple[EncodedQuery, list[LegName]]:
        """Encode the query, and give the legs that have something to search for."""
        request, legs = self.plan.request, self.plan.legs
        query = self.parts.encoder.encode(
            typed.searched,
            self.plan.task,
            self.clock,
            dense="dense" in legs,
            sparse="sparse" in legs or request.snippets is not None,
            extra_terms=extra_terms,
        )
        known = {"dense": query.dense is not None, "sparse": bool(query.terms)}
        searched = [name for name in legs if known[name]]
        require_terms(searched, "query", typed.searched)
        return query, searched

    def _extra_terms(self, typed: Typed) -> list[tuple[str, float]]:
        """Give the texts that count beside the query, with their weights: the request's, the completions, and those of
        rules."""
        terms, rules = self.plan.request.terms, self._rules
        if not (terms or typed.words or rules):
            return []
        added = [*typed.words, *(() if rules is None else rules.synonyms)]  # an error must not name what nobody sent
        return [*((term.text, term.weight) for term in terms), *(one for one in added if self._is_known(one[0]))]

    def _is_known(self, text: str) -> bool:
        """Whether a leg to be searched has something to search for in a text."""
        encoder, legs = self.parts.encoder, self.plan.legs
        try:
            return bool(
                ("dense" in legs and encoder.tokenizer.query_ids(text))
                or ("sparse" in legs and encoder.vocabulary.terms_of([text])[0])
            )
        except TokenizerError:
            return False

    def _candidates(self, query: EncodedQuery, legs: Sequence[LegName]) -> dict[LegName, ScoredDocuments]:
        """Search the legs in parallel. DeadlineError or SearchFailedError if too few answer."""
        found: dict[LegName, ScoredDocuments] = {}
        plan, among = self.plan, None
        if (condition := self._condition()) is not None:
            with self.clock.measure("filter"):
                among = self.parts.documents.where(condition)
        outcomes = self.parts.backends.search(query, legs, plan.candidates, among, self.until(_LEGS_UNTIL))
        for name in legs:
            outcome = outcomes[name]
            if outcome.reason is None:
                found[name] = outcome.get()
                self.clock.add(name, outcome.started, outcome.ended)
            else:
                self.missing[name] = outcome.reason
                if outcome.error is not None and outcome.reason == "failed":
                    self._log_failure(name, outcome.error)
        partial_answer = plan.request.allow_partial and plan.request.min_matched is None
        if not found or (self.missing and not partial_answer):
            errors = [outcome.error for outcome in outcomes.values()]
            _give_up(self.missing, errors, plan.deadline_ms * _LEGS_UNTIL)
        return found

    def _condition(self) -> tuple[str, ...] | None:
        """Give the filter of the request, without the documents that rules hide."""
        condition, rules = self.plan.condition, self._rules
        if rules is None or not rules.hidden:
            return condition
        hidden = ("not", "ids", str(len(rules.hidden)), *rules.hidden)
        return hidden if condition is None else ("and", "2", *condition, *hidden)

    def _pinned(self, rules: AppliedRules) -> dict[str, int]:
        """Give the ordinals of the documents that rules put first, by id in their order: those that pass the filter.
        None with `sort`, whose field alone gives the order."""
        if not rules.pinned or self.plan.request.sort is not None:
            return {}
        ids, condition, documents = rules.pinned, self._condition(), self.parts.documents
        wanted = ("ids", str(len(ids)), *ids)
        self.require_time("find the pinned documents")
        with self.clock.measure("filter"), self.parts.backends.within(self.until(_RESCORE_UNTIL)):
            among = self.parts.documents.where(wanted if condition is None else ("and", "2", *condition, *wanted))
            with reading():
                ordinals = documents.store.listed(among, None, 0, len(ids))
            read = [document_id for document_id, _ in documents.fetch(ordinals, [])]
            found = dict(zip(read, ordinals.tolist(), strict=True))
        return {document_id: found[document_id] for document_id in ids if document_id in found}

    def _score(self, query: EncodedQuery, table: CandidateTable, legs: list[LegName], shares: Shares) -> None:
        """Fill in each leg's true score of the documents that only other legs proposed. If it fails or there is no
        time, the scores stay unknown and `unscored` names the leg."""
        wanted = {name: which for row, name in enumerate(legs) if (which := table.missing(row)).size}
        if not wanted:
            return
        started, scored, until = perf_counter(), False, self.until(_RESCORE_UNTIL)
        if "sparse" in wanted and started < until and (found := shares()) is not None:
            row = legs.index("sparse")
            table.fill(row, scores_of(found[np.isnan(table.scores[row])]))
            del wanted["sparse"]
            scored = True
        for name, outcome in self.parts.backends.score(query, wanted, until).items():
            if outcome.reason is None:
                table.fill(legs.index(name), outcome.get())
                scored = True
                continue
            if isinstance(outcome.error, DocumentsGoneError):
                raise outcome.error
            self.unscored[name] = outcome.reason
            if outcome.error is not None and outcome.reason == "failed":
                self._log_failure(name, outcome.error)
        if scored:
            self.clock.add("rescore", started)

    def _fused(self, table: CandidateTable, legs: list[LegName]) -> Fused:
        fusion, weights = self.plan.request.fusion, [self.plan.legs[name] for name in legs]
        if self.plan.request.mode != "hybrid":
            return Fused(np.argsort(table.ranks[0]), table.scores, table.scores[0])
        if isinstance(fusion, LinearFusion):
            return fuse_linear(table, weights, fusion.normalization)
        return fuse_rrf(table, weights, fusion.rank_constant)

    def _gives_feedback(self, legs: list[LegName]) -> bool:
        return self.plan.feedback > 0 and len(legs) == 2

    def _with_feedback(
        self, fused: Fused, query: EncodedQuery, table: CandidateTable, legs: list[LegName], shares: Shares
    ) -> Fused:
        """Fuse again, with the dense leg's scores for the query's vector moved towards that of the first document.
        Without feedback where it has none of the query's words, and where a backend fails or is late."""
        if not self._gives_feedback(legs) or not fused.order.size or query.dense is None:
            return fused
        first, dense = fused.order[0], legs.index("dense")
        score = table.scores[legs.index("sparse"), first]
        if np.isnan(table.scores).any() or score <= 0 or (found := shares()) is None:
            return fused
        weight = self.plan.feedback * word_share(float(score), found.max(axis=0))
        try:
            (vector,) = self.parts.backends.vectors(table.ordinals[[first]])
            moved = replace(query, dense=moved_query(query.dense, vector, weight))
            scores = self.parts.backends.legs["dense"].scores(moved, table.ordinals)
        except DocumentsGoneError:
            raise
        except Exception as error:
            late = isinstance(error, TimeoutError)
            self.unscored["dense"] = "late" if late else "failed"
            if not late:
                self._log_failure("dense", error)
            return fused
        again = CandidateTable(table.ordinals, table.scores.copy(), table.ranks)
        again.scores[dense] = scores
        return with_feedback(fused, self._fused(again, legs), dense)

    def _shares_to_judge(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32] | None:
        found = self._shares_of("sparse", query, ordinals)
        if found is None and self.plan.request.min_matched is not None:
            raise SearchFailedError("The leg sparse failed. The reason is in the log; try again later.")
        return found

    def _matching(
        self, fused: Fused, levels: Levels | None, legs: list[LegName], pinned: list[int]
    ) -> tuple[Fused, int | None]:
        """Leave out of a ranking what matches less well than the request asks for, but the columns `pinned`, and tell
        how many these are."""
        least = self.plan.request.min_matched
        if least is None or (levels is None and "dense" in legs):  # None for a head query, and a rule's synonyms
            return fused, None
        kept = np.isin(fused.order, pinned)
        if levels is not None:
            kept |= levels[fused.order] >= LEVELS.index(least)
        return replace(fused, order=fused.order[kept]), fused.order.size - int(kept.sum())

    def _ranked(self, text: str, table: CandidateTable, fused: Fused, pinned: list[int]) -> Ranked:
        """Order the candidates by what else the request asks for, but those of the columns `pinned` first."""
        request, parts = self.plan.request, self.parts
        names = fields_to_rank(request)
        if not names and not request.diversity and not self.plan.rerank and not pinned:
            return Ranked(fused.order.tolist(), fused.scores, np.empty((0, fused.scores.size)))
        self.require_time("order the candidates")
        ordinals = table.ordinals[fused.order]
        with self.clock.measure("rank"):
            documents = parts.documents.fetch(ordinals, names) if names else []
            values = {name: [fields.get(name) for _, fields in documents] for name in names}
            vectors, require_time = partial(self._vectors, ordinals), partial(self.require_time, "diversify")
            rerank = partial(self._reranked, text, table)
            return ranked(request, fused, values, self.plan.kinds, vectors, rerank, require_time, pinned)

    def _vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        with reading():
            rows = self.parts.backends.vectors(ordinals)
        unit: npt.NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit

    def _reranked(self, text: str, table: CandidateTable, columns: npt.NDArray[np.intp]) -> list[float]:
        """Ask the reranking model for the scores of the first columns; none if it is not to be asked, fails or is
        late."""
        parts, until = self.parts, self.until(_RERANK_UNTIL)
        if not self.plan.rerank or parts.reranker is None or not columns.size:
            return []
        outcome: Outcome[list[float]] = Outcome(reason="stuck")
        if parts.reranker.turns.take(_RERANK_PATIENCE * (until - perf_counter())):
            try:
                documents = parts.documents.fetch(table.ordinals[columns[: parts.reranker.top]], ["title", "text"])
                call = partial(parts.reranker.scores, text, [fields for _, fields in documents], until)
                outcome = parts.executor.gather({RERANK: call}, until)[RERANK]
            finally:
                parts.reranker.turns.end(answered=outcome.reason is None)
        if outcome.reason is None:
            self.clock.add(RERANK, outcome.started, outcome.ended)
            return outcome.get()
        self.missing[RERANK] = outcome.reason
        if outcome.error is not None:
            _log.error("reranker failed", exc_info=outcome.error)
        if not self.plan.request.allow_partial:
            if outcome.reason == "failed":
                raise SearchFailedError("The reranking model failed; the log says why. Allow partial answers.")
            raise DeadlineError("The reranking model was too late. Allow partial answers, or more time.")
        return []

    def _shares(
        self, query: EncodedQuery, legs: list[LegName], ordinals: Ordinals
    ) -> dict[LegName, npt.NDArray[np.float32]]:
        """Give each term's share of each leg's score, without the legs that fail, and without the dense leg of a head
        query."""
        if query.head:
            legs = [name for name in legs if name != "dense"]
        elif "dense" in legs:
            query = self.parts.encoder.with_parts(query, self.plan.task)
        shares = {}
        for name in legs:
            found = self._shares_of(name, query, ordinals)
            if found is not None:
                shares[name] = found
        return shares

    def _shares_of(self, name: LegName, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32] | None:
        """Give each term's or token's share of a leg's score, None if the leg fails."""
        try:
            return self.parts.backends.legs[name].shares(query, ordinals)
        except DocumentsGoneError:
            raise
        except TimeoutError as error:
            raise DeadlineError(
                "There was no time left to read which words the documents have. Allow more time."
            ) from error
        except Exception as error:
            self._log_failure(name, error)
            return None

    def _log_failure(self, name: LegName, error: BaseException) -> None:
        _log.error("leg failed", exc_info=error, extra={"leg": name, "backend": self.parts.backends.legs[name].backend})

    def _list(self) -> Plain:
        """List all documents that match the filter, in the order of a declared field or of writing. No leg is searched,
        so hits have no scores. DocumentsGoneError if a document was deleted meanwhile."""
        parts, plan, among = self.parts, self.plan, None
        request, store = plan.request, parts.documents.store
        with parts.backends.within(self.until()):
            if plan.condition is not None:
                with self.clock.measure("filter"):
                    among = parts.documents.where(plan.condition)
            self.require_time("order the documents")
            with self.clock.measure("rank"), reading():
                seconds = self.until(_RESCORE_UNTIL) - perf_counter()
                ordinals = store.listed(among, plan.order, request.offset, request.k, seconds)
                (total,) = store.totals([among])
            return build_listing(self, ordinals, total, among)


def _with_columns(fused: Fused, columns: list[int]) -> Fused:
    """Give a ranking that has these columns, too: last, unless they are in it, and with the score 0 where theirs is not
    known."""
    missing = np.setdiff1d(np.array(columns, np.intp), fused.order)
    order = np.concatenate([fused.order, missing])
    return replace(fused, order=order, shares=np.nan_to_num(fused.shares), scores=np.nan_to_num(fused.scores))


def _give_up(missing: Mapping[Any, Reason], errors: Iterable[BaseException | None], share_ms: float) -> NoReturn:
    """Raise DeadlineError or SearchFailedError for legs that are missing, or NotReadyError if their cluster is not
    available; `errors` are theirs, and `share_ms` is the time that they had."""
    if any(isinstance(error, UnavailableError) for error in errors):
        raise NotReadyError(UNAVAILABLE)
    legs = {
        reason: " and ".join(sorted(name for name, why in missing.items() if why == reason))
        for reason in missing.values()
    }
    if "failed" in legs:
        raise SearchFailedError(f"The leg {legs['failed']} failed. The reason is in the log; try again later.")
    if "stuck" in legs:
        raise DeadlineError(f"The leg {legs['stuck']} has no free thread: calls that don't end hold all. Try later.")
    raise DeadlineError(
        f"No answer from the leg {legs['late']} within {share_ms:g} ms, its share of the deadline. "
        "Allow more time, or fewer candidates."
    )
