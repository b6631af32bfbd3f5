"""Checks requests against the bundle and the settings, which the schema alone can't, and fills in their defaults: the
plan of a search, and its context, which is what all of its steps share.

**Operators** in a query: a "phrase in quotes" that documents must have, and -word, which they must not have. A quote
begins a phrase at the beginning of a word, so that 3.5" is a size. Exclusions are up to eight words of three characters
or more at the end of a query, behind what is looked for. A query with any other - at the beginning of a word is text as
it stands, as a command line has: tar -xzf archive.tar, ls -l, gcc -std=c99 -pedantic.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from lightretriever.artifacts.bundle.manifest import MatchThresholds
from lightretriever.artifacts.documents.fields import FieldKind, milliseconds, number
from lightretriever.artifacts.sparse.vocabulary import Language, words_of
from lightretriever.service import schemas
from lightretriever.service.backends.base import DocumentsGoneError
from lightretriever.service.errors import DeadlineError, FieldError, InvalidRequestError
from lightretriever.service.execution.executor import Reason
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.filters import Ranges, all_of, listed, read_filter, read_ranges
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.service.search.engine import Parts

_log = logging.getLogger(__name__)
T = TypeVar("T")
SEARCH_UNTIL: Final = 0.8
"""Share of the deadline, counted from the arrival, at which the legs are given up. The rest is for later steps."""

RESCORE_UNTIL: Final = 0.9
"""Share at which candidates are no longer scored."""

RERANK_UNTIL: Final = 0.97
"""Share at which the reranking model is given up."""

_LAST_SORTED: Final = 100_000  # documents whose order is kept in memory at once
_LAST_ON_CLUSTER: Final = 10_000  # OpenSearch's max_result_window
_NO_SPELLING: Final = "only a bundle with `index.vocabulary: words` has spellings, and no cluster: leave it out"
_OF_EVERY_SEARCH: Final = {"query", "k", "offset"}
_NO_DENSE: Final = "the bundle has no dense leg: build it with `index.dense: true` to have one"
_PHRASE: Final = re.compile(r"(?<!\S)[\"“„](?=\S)([^\"“”„]+)[\"“”](?!\w)")
_EXCLUSION: Final = re.compile(r"-([^\W\d_]{2}[^\s=/:\"“”]+)")
_WITH_EXCLUSIONS: Final = re.compile(rf"(\s*(?>(?!-\S)\S+\s+)+)((?>{_EXCLUSION.pattern}(?!\S)\s*){{1,8}})")


def candidates_of(request: schemas.SearchRequest, settings: Settings) -> int:
    """The candidates of each leg: those asked for, else as many times the default as `offset + k` needs."""
    if request.candidates is not None:
        return request.candidates
    default = settings.candidates
    return min(-(-(request.offset + request.k) // default) * default, settings.max_candidates)


class Operators(NamedTuple):
    """A query in parts: the text to look for, its phrases with their quotes among it, the words of `-word`, and the
    phrases, each once."""

    text: str
    excluded: list[str]
    phrases: list[str]


def read_operators(query: str) -> Operators:
    """Return a query in parts."""
    text, exclusions = query, ""
    if (parts := _WITH_EXCLUSIONS.fullmatch(query)) and any(map(str.isalnum, parts[1])):
        text, exclusions = parts[1].rstrip(), parts[2]
    excluded, phrases = (
        list(dict.fromkeys(matches)) for matches in (_EXCLUSION.findall(exclusions), _PHRASE.findall(text))
    )
    return Operators(text, excluded, phrases)


def literal(text: str) -> str:
    """Return a text as a query without operators: with a blank behind their first characters."""
    parts = read_operators(text)
    words = _PHRASE.sub(lambda phrase: f"{phrase[0][0]} {phrase[0][1:]}", parts.text)
    return " - ".join([words, *parts.excluded])


def outside_quotes(query: str) -> str:
    """Return a query with blanks in the places of its phrases."""
    return _PHRASE.sub(lambda phrase: " " * len(phrase[0]), query)


@dataclass(frozen=True, slots=True)
class Plan:
    """A search that was checked, with every default filled in.

    legs: by name the weights of the legs to search. candidates: of each leg. deadline_ms: milliseconds from the
    arrival. max_explained: most hits times terms and tokens to explain. condition: the filter as the backends read it.
    ranges: those to count, by field. kinds: those of the declared fields. rerank: whether the reranking model is asked.
    thresholds: those of a match. feedback: weight of the first document's vector, 0 for no feedback. normalization:
    that of linear fusion. text: what is searched for, the query as typed or corrected, without the words `excluded`,
    which documents must not have. added: texts that count beside it, with their weights, unless no leg knows them.
    pinned: ids of the documents that come first. facts: fields of the answer that tell how the query was changed.
    """

    request: schemas.SearchRequest
    task: str
    legs: Mapping[schemas.LegName, float]
    candidates: int
    deadline_ms: float
    max_explained: int
    condition: tuple[str, ...] | None
    ranges: Mapping[str, Ranges]
    kinds: Mapping[str, FieldKind]
    rerank: bool
    thresholds: MatchThresholds | None
    feedback: float
    normalization: schemas.Normalization
    text: str
    excluded: Sequence[str] = ()
    added: Sequence[tuple[str, float]] = ()
    pinned: Sequence[str] = ()
    facts: schemas.Plain = field(default_factory=dict)

    @property
    def lists(self) -> bool:
        """True if the search looks for nothing, and lists documents."""
        return self.request.query is None and self.request.like is None


@dataclass(slots=True)
class SearchContext:
    """A search under way.

    missing: legs that did not answer, and the reranking model if it didn't. unscored: legs that answered but did not
    score given documents, those of the other leg or those to explain.
    """

    parts: "Parts"
    plan: Plan
    clock: StageClock
    missing: dict[schemas.LegName | Literal["rerank"], Reason] = field(default_factory=dict)
    unscored: dict[schemas.LegName, Reason] = field(default_factory=dict)

    def deadline(self, share: float = 1.0) -> float:
        """Return the `perf_counter` time at which a share of the deadline is over."""
        return self.clock.arrived + share * self.plan.deadline_ms / 1e3

    def require_time(self, task: str) -> None:
        """Raise DeadlineError, which names the task, if the deadline is over."""
        if perf_counter() >= self.deadline():
            raise DeadlineError(f"There was no time left to {task} in {self.plan.deadline_ms:g} ms. Allow more time.")

    def log_failure(self, name: schemas.LegName, error: BaseException) -> None:
        """Log why a leg failed."""
        _log.error("leg failed", exc_info=error, extra={"leg": name, "backend": self.parts.backends.legs[name]})

    def ask_leg(self, name: schemas.LegName, call: Callable[[], T], share: float = 1.0) -> T | None:
        """Return what a leg gives for the candidates; None, with the reason in `unscored`, if it fails, or is late at a
        share of the deadline. DocumentsGoneError."""
        reason: Reason = "late"
        try:
            if perf_counter() < self.deadline(share):
                with self.parts.backends.within(self.deadline(share)):
                    return call()
        except DocumentsGoneError:
            raise
        except TimeoutError:
            pass
        except Exception as error:
            reason = "failed"
            self.log_failure(name, error)
        self.unscored[name] = reason
        return None


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Checks requests against the bundle and the settings, and fills in their defaults. One error lists everything
    wrong with a request.

    tasks: the thresholds of a match by task. filters: the kinds of the declared fields. fields, modes: what else a
    request may name. weights, feedback, normalization: the default ones. spells, reranks: whether there are spellings,
    and a reranking model. phrases: the language of the words whose positions are known, None if they are not.
    """

    settings: Settings
    tasks: Mapping[str, MatchThresholds | None]
    default_task: str
    filters: Mapping[str, FieldKind]
    fields: Collection[str]
    modes: Sequence[schemas.Mode]
    weights: schemas.Weights
    feedback: float
    normalization: schemas.Normalization
    spells: bool
    reranks: bool
    phrases: Language | None

    def read_search(self, request: schemas.SearchRequest) -> Plan:
        """Check a search, and fill in what it leaves open. InvalidRequestError unless it can be answered."""
        plan, errors = self._read(request, self.settings.max_explained)
        _raise_all(errors)
        return plan

    def read_batch(self, requests: Collection[schemas.SearchRequest]) -> list[Plan]:
        """Check several searches, which share what may be explained at once. InvalidRequestError unless every search
        can be answered and the batch is within its limits."""
        max_batch = self.settings.max_batch
        if len(requests) > max_batch:
            message = f"a batch has at most {max_batch} searches; send the others in another request"
            raise InvalidRequestError.at("searches", message, len(requests))
        hits, limit = sum(request.k for request in requests), self.settings.max_batch_hits
        if hits > limit:
            message = f"the searches ask for {hits} hits together, at most {limit} are possible: ask for fewer at once"
            raise InvalidRequestError.at("searches", message, hits)
        explained = self.settings.max_explained // max(1, sum(request.explain for request in requests))
        read = [self._read(request, explained) for request in requests]
        _raise_all(
            FieldError(f"searches.{position}.{error.field}", error.message, error.value)
            for position, (_, errors) in enumerate(read)
            for error in errors
        )
        return [plan for plan, _ in read]

    def _read(self, request: schemas.SearchRequest, max_explained: int) -> tuple[Plan, list[FieldError]]:
        settings, fusion, condition, ranges = self.settings, request.fusion, None, dict[str, Ranges]()
        candidates, operators = candidates_of(request, settings), read_operators(request.query or "")
        errors = list(self._of_search(request, candidates, operators))
        if request.facet_ranges:
            ranges, wrong = read_ranges(request.facet_ranges, self.filters)
            errors += wrong
        if request.filter is not None:
            condition, wrong = read_filter(request.filter, self.filters)
            errors += wrong
        if request.like is not None:
            condition = all_of(condition, ("not", "ids", "1", request.like))
        facts = dict[str, Any]()
        if operators.phrases and not errors:
            required = list[str]()  # none if the index has no positions, and no phrase of stop words alone
            if self.phrases is not None:
                terms = words_of(operators.phrases, self.phrases)
                required = [phrase for phrase, words in zip(operators.phrases, terms, strict=True) if words]
                condition = all_of(condition, *(("phrase", self.phrases, phrase) for phrase in required))
            facts["phrases"] = {phrase: phrase in required for phrase in operators.phrases}
        task = self.default_task if request.task is None else request.task
        feedback, normalization = 0.0, self.normalization
        if isinstance(fusion, schemas.LinearFusion):
            normalization = fusion.normalization or normalization
            if request.mode == "hybrid":
                feedback = self.feedback if fusion.normalization != "paper" else 0.0
                feedback = feedback if fusion.feedback is None else fusion.feedback
        wanted = request.sort is None if request.rerank is None else request.rerank
        plan = Plan(
            request,
            task=task,
            legs=self._legs(request),
            candidates=candidates,
            deadline_ms=settings.deadline_ms if request.deadline_ms is None else request.deadline_ms,
            max_explained=max_explained,
            condition=condition,
            ranges=ranges,
            kinds=self.filters,
            rerank=self.reranks and request.like is None and wanted,
            thresholds=self.tasks.get(task),
            feedback=feedback,
            normalization=normalization,
            text=operators.text,
            excluded=operators.excluded,
            facts=facts,
        )
        return plan, errors

    def _legs(self, request: schemas.SearchRequest) -> dict[schemas.LegName, float]:
        """Return the legs to search, which excludes those of weight 0 and those that the bundle lacks."""
        if request.mode != "hybrid":
            return {request.mode: 1.0}
        weights, legs = request.fusion.weights or self.weights, dict[schemas.LegName, float]()
        if weights.dense and "dense" in self.modes:
            legs["dense"] = weights.dense
        if weights.sparse:
            legs["sparse"] = weights.sparse
        return legs

    def check_encode(self, request: schemas.EncodeRequest) -> None:
        """Raise InvalidRequestError unless the text can be encoded."""
        _raise_all([*self._of_text("text", request.text), *self._of_task(request.task)])

    def _of_search(self, request: schemas.SearchRequest, candidates: int, operators: Operators) -> Iterator[FieldError]:
        limit = self.settings.max_candidates
        if request.like is not None:
            message = "it is for a text to search for, which `like` takes the place of: leave one of them out"
            yield from _of_none(request, ("query", "task", "spelling", "prefix", "rerank"), message)
        elif request.query is None:
            if request.filter is None and request.sort is None:
                message = "the field is required, unless there is `like`, or `filter` or `sort` lists documents"
                yield FieldError("query", message)
            message = "it needs a query, whose hits it orders: give one, or leave it out"
            yield from _of_none(request, ("boosts", "rerank", "group_by"), message)
        elif len(request.query) > self.settings.max_query_chars:
            yield from self._of_text("query", request.query)
        elif operators.excluded and not self.spells:
            message = f"`-word` excludes by spellings; write `- word` to look for the word; {_NO_SPELLING}"
            yield FieldError("query", message, request.query)
        if request.query is None and request.like is None:
            yield from self._of_listed_window(request)
        elif candidates > limit:
            yield FieldError("candidates", f"at most {limit} are possible (setting 'max_candidates')", candidates)
        elif request.offset + request.k > candidates:
            bound = "setting 'max_candidates'" if candidates == limit else f"field 'candidates', at most {limit}"
            last = request.offset + request.k
            message = f"offset + k is {last}, but there are only {candidates} candidates ({bound})"
            yield FieldError("k", message, request.k)
        if request.model_fields_set - _OF_EVERY_SEARCH:
            yield from self._of_options(request)

    def _of_options(self, request: schemas.SearchRequest) -> Iterator[FieldError]:
        fusion = request.fusion
        if isinstance(fusion, schemas.LinearFusion) and fusion.normalization == "evidence" != self.normalization:
            message = "the bundle has no background to judge evidence by: use range, or build the bundle again"
            yield FieldError("fusion.normalization", message, fusion.normalization)
        yield from self._of_task(request.task)
        if "dense" not in self.modes:
            if request.mode == "dense":
                yield FieldError("mode", f"{_NO_DENSE}; it has the modes {', '.join(self.modes)}", request.mode)
            if "weights" in fusion.model_fields_set and fusion.weights and fusion.weights.dense:
                yield FieldError("fusion.weights.dense", _NO_DENSE, fusion.weights.dense)
        if request.like is None and not self.spells:
            yield from _of_none(request, ("spelling", "prefix"), _NO_SPELLING)
        yield from self._of_ranking(request)
        yield from self._of_fields("fields", request.fields or ())
        if request.snippets is not None:
            yield from self._of_fields("snippets.fields", request.snippets.fields)
        for name in request.facets:
            if self.filters.get(name) != "keyword":
                keywords = listed(name for name, kind in self.filters.items() if kind == "keyword")
                message = f"only declared keyword fields are counted: {keywords}"
                yield FieldError("facets", message, name)
        limit = self.settings.deadline_ms
        if request.deadline_ms is not None and request.deadline_ms > limit:
            message = f"the service's deadline is {limit:g} ms; ask for less"
            yield FieldError("deadline_ms", message, request.deadline_ms)

    def _of_ranking(self, request: schemas.SearchRequest) -> Iterator[FieldError]:
        for index, boost in enumerate(request.boosts):
            yield from self._of_boost(f"boosts.{index}", boost)
        if request.sort is not None:
            if request.sort.field not in self.filters:
                message = f"only declared fields can be sorted by: {listed(self.filters)}"
                yield FieldError("sort.field", message, request.sort.field)
            if request.boosts:
                yield FieldError("sort", "the field alone gives the order: leave out boosts")
        if request.rerank and request.like is None:
            if self.settings.rerank_url is None:
                yield FieldError("rerank", "the service has no reranking model (setting rerank_url)", value=True)
            if request.sort is not None:
                yield FieldError("rerank", "sort gives the order: leave one of them out", value=True)
        if request.group_by is not None:
            yield from self._of_fields("group_by", [request.group_by])

    def _of_boost(self, path: str, boost: schemas.Boost) -> Iterator[FieldError]:
        kind = self.filters.get(boost.field)
        if kind not in ("number", "date"):
            numbers = listed(name for name, of in self.filters.items() if of != "keyword")
            message = f"only declared numbers and dates boost: {numbers}"
            yield FieldError(f"{path}.field", message, boost.field)
        elif kind == "date" and boost.scale is not None:
            yield FieldError(f"{path}.scale", "the field is a date: give half_life, in days", boost.scale)
        elif kind == "number" and boost.half_life is not None and boost.origin is None:
            yield FieldError(f"{path}.origin", "the field is a number: name the number that gets the whole weight")
        elif boost.origin is not None:
            try:
                (milliseconds if kind == "date" else number)(boost.origin)
            except ValueError as error:
                yield FieldError(f"{path}.origin", f"{error}", boost.origin)

    def _of_listed_window(self, request: schemas.SearchRequest) -> Iterator[FieldError]:
        """A listing has no candidates: its pages may be anywhere, as far as the order can be found."""
        limit = self.settings.max_candidates
        if request.k > limit:
            message = f"at most {limit} documents are listed at once: ask for the others by offset"
            yield FieldError("k", message, request.k)
        last = _LAST_ON_CLUSTER if self.settings.backend == "opensearch" else _LAST_SORTED
        if (self.settings.backend == "opensearch" or request.sort) and request.offset + request.k > last:
            message = f"only the first {last:,} documents are listed; narrow the filter"
            if self.settings.backend == "local":
                message += ", or leave out sort: in the order of writing, all are listed"
            yield FieldError("offset", message, request.offset)

    def _of_text(self, field: str, text: str) -> Iterator[FieldError]:
        limit = self.settings.max_query_chars
        if len(text) > limit:
            yield FieldError(field, f"the text has {len(text)} characters, at most {limit} are possible: shorten it")

    def _of_fields(self, field: str, names: Iterable[str]) -> Iterator[FieldError]:
        for name in names:
            if name not in self.fields:
                message = f"documents have no such field; they have: {listed(self.fields)}"
                yield FieldError(field, message, name)

    def _of_task(self, task: str | None) -> Iterator[FieldError]:
        if task is not None and task not in self.tasks:
            yield FieldError("task", f"the bundle has no such task; it has: {listed(self.tasks)}", task)


def _of_none(request: schemas.SearchRequest, names: Iterable[str], message: str) -> Iterator[FieldError]:
    for name in names:
        if value := getattr(request, name):
            yield FieldError(name, message, value)


def _raise_all(errors: Iterable[FieldError]) -> None:
    if wrong := list(errors):
        raise InvalidRequestError.of(*wrong)
