"""Explains scores exactly, word by word, because both legs are sums over parts of the query.

dense   score(d) = sum_t share_t,   share_t = f_t * (E[t] . d) / |sum_s f_s E[s]|,   f_t the weighted count of the
token t sparse  score(d) = sum_t share_t,   share_t = weight_t * impact(t, d)                for the terms t of the
vocabulary fused   score(d) = sum_l share_l,   share_l the leg's share

A word has the tokens and the terms that begin in it; one that several words have is shared out by their weights. A head
query's dense vector comes from a model, so its words have no shares of the dense score. Terms that are nowhere in the
text stand by themselves.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from lightretriever.artifacts.dtypes import Float32Array, Float64Array
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.schemas import LegName, Plain, SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.words import HYPHENED, WORD


class Part(NamedTuple):
    """A token or a term of a word: its place in the query's arrays, and the share of it that the word has."""

    position: int
    share: float


@dataclass
class QueryWord:
    """A word of the query as it is spelt there, how often it comes, and its tokens and terms."""

    text: str
    count: int = 0
    tokens: list[Part] = field(default_factory=list)
    terms: list[Part] = field(default_factory=list)


def check_explained(request: SearchRequest, query: EncodedQuery, limit: int) -> None:
    """Raise InvalidRequestError if a request asks for more than `limit` tokens and terms of its hits."""
    parts = len(query.terms) + query.tokens.ids.size
    if request.k * parts > limit:
        many = f"{request.k} hits times {parts} different tokens and terms are too many to explain"
        message = f"{many}: at most {limit} are possible, in all of a batch. Ask for fewer hits, or shorten the query"
        raise InvalidRequestError.at("explain", message, value=True)


def query_words(
    text: str, added: Sequence[tuple[str, float]], query: EncodedQuery, encoder: QueryEncoder
) -> list[QueryWord]:
    """The words of the `text` that was searched for and of the texts that count beside it, each with its weight, in
    order, with the tokens and terms of the encoded `query`."""
    texts = [(text, 1.0), *added]
    tokens = {token: position for position, token in enumerate(query.tokens.ids.tolist())}
    terms = {term: position for position, term in enumerate(query.terms)}
    words: dict[str, QueryWord] = {}
    shares: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    term_places = encoder.vocabulary.places_of([text for text, _ in texts])
    for (text, weight), of_terms in zip(texts, term_places, strict=True):
        spans = _spans(text)
        for start, end in spans:
            words.setdefault(text[start:end].lower(), QueryWord(text[start:end])).count += 1
        parts = [("token", tokens.get(token), span) for token, *span in encoder.tokenizer.query_places(text)]
        parts += [("term", terms.get(term), span) for term, *span in of_terms]
        for kind, position, (start, end) in parts:
            if position is None:
                continue
            spelt = _word_at(text, spans, start, end)
            words.setdefault(spelt.lower(), QueryWord(spelt))
            of_word = shares[kind, position]
            of_word[spelt.lower()] = of_word.get(spelt.lower(), 0.0) + weight
    for (kind, position), of_word in shares.items():
        total = sum(of_word.values())
        for name, weight in of_word.items():
            part = Part(position, weight / total if total else 1.0 / len(of_word))
            (words[name].tokens if kind == "token" else words[name].terms).append(part)
    for term, number in terms.items():
        if ("term", number) not in shares:  # it is nowhere in the text
            word = words.setdefault(f"\0{term}", QueryWord(encoder.vocabulary.spelt(term)))
            word.terms.append(Part(number, 1.0))
    for token, number in tokens.items():
        if ("token", number) not in shares:  # it is nowhere in the text, as the space that a tokenizer puts before it
            word = words.setdefault(f"\0{token}", QueryWord(encoder.tokenizer.token(token)))
            word.tokens.append(Part(number, 1.0))
    return list(words.values())


def explanations(
    query: EncodedQuery,
    words: Sequence[QueryWord],
    encoder: QueryEncoder,
    fusion: Float64Array,
    legs: Sequence[LegName],
    shares: Mapping[LegName, Float32Array],
    texts: Sequence[str],
    require_time: Callable[[str], None],
) -> list[Plain]:
    """Explain each hit, as `Explanation`. `require_time` is called before each and may raise.

    fusion: (legs, k), each leg's share of each hit's score. shares: by leg the share of the leg's score, (k, t) of each
    term, (k, u) of each token; a leg may be absent. texts: the title and text of each hit.
    """
    nothing: list[float | None] = [None] * len(texts)
    of_legs = {"dense": nothing, "sparse": nothing} | dict(zip(legs, fusion.tolist(), strict=True))
    listed_terms, listed_tokens = list_terms_of(query, encoder), list_tokens(query, encoder)
    no_terms, no_tokens = [None] * len(listed_terms), [None] * len(listed_tokens)
    explained = []
    for row, spelt in enumerate(map(set, encoder.vocabulary.terms_of(texts))):
        require_time("explain the hits")
        of_terms = shares["sparse"][row].tolist() if "sparse" in shares else no_terms
        of_tokens = shares["dense"][row].tolist() if "dense" in shares else no_tokens
        explanation: Plain = {"fusion": {leg: values[row] for leg, values in of_legs.items()}, "words": []}
        for word in words:
            terms = [_term(listed_terms[place], of_terms[place], share, spelt) for place, share in word.terms]
            tokens = [listed_tokens[place] | {"dense": _part(of_tokens[place], share)} for place, share in word.tokens]
            explanation["words"].append(
                {
                    "word": word.text,
                    "count": word.count,
                    "dense": sum((token["dense"] for token in tokens), 0.0) if "dense" in shares else None,
                    "sparse": sum((term["sparse"] for term in terms), 0.0) if "sparse" in shares else None,
                    "added": any(term["added"] for term in terms),
                    "terms": terms,
                    "tokens": tokens,
                }
            )
        if query.terms:
            explanation["coverage"] = round(sum(term in spelt for term in query.terms) / len(query.terms), 4)
        explained.append(explanation)
    return explained


def list_terms_of(query: EncodedQuery, encoder: QueryEncoder) -> list[Plain]:
    """List the terms of a query, as `TermCount`."""
    facts = zip(query.terms, query.counts.tolist(), query.weights.tolist(), strict=True)
    spelt = encoder.vocabulary.spelt
    return [{"term": term, "text": spelt(term), "count": count, "weight": weight} for term, count, weight in facts]


def list_tokens(query: EncodedQuery, encoder: QueryEncoder) -> list[Plain]:
    """List the tokens of a query in the dense leg, as `TokenCount`."""
    facts = zip(*(array.tolist() for array in query.tokens), strict=True)
    return [
        {"id": token_id, "token": encoder.tokenizer.token(token_id), "count": n, "weight": w}
        for token_id, n, w in facts
    ]


def _term(fact: Plain, score: float | None, share: float, spelt: Collection[str]) -> Plain:
    """Return a word's share of a term's score of a document in whose text these terms are `spelt`, as `TermShares`."""
    impact, added = None if score is None else round(score / fact["weight"]), bool(score) and fact["term"] not in spelt
    return fact | {"impact": impact, "sparse": _part(score, share), "added": added}


def _part(value: float | None, share: float) -> float | None:
    return None if value is None else value * share


def _spans(text: str) -> list[tuple[int, int]]:
    """The words of a text; two parts with a hyphen between them are one."""
    joined = {match.start(): match.end(2) for match in HYPHENED.finditer(text)}
    spans: list[tuple[int, int]] = []
    for word in WORD.finditer(text):
        start, end = word.span()
        if spans and start < spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1], joined.get(start, 0))
        else:
            spans.append((start, max(end, joined.get(start, 0))))
    return spans


def _word_at(text: str, spans: Sequence[tuple[int, int]], start: int, end: int) -> str:
    """The word of a text in which a place begins, or which it follows where it is empty; else what stands there."""
    row = bisect_right(spans, start, key=itemgetter(0)) - 1
    if start == end and row > 0 and spans[row - 1][1] == start:
        row -= 1
    if row >= 0 and (start < spans[row][1] or start == end == spans[row][1]):
        return text[slice(*spans[row])]
    return text[start:end] or text
