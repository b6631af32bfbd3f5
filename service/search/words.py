"""Words: what one is in a text, and how those of a query are corrected and completed by the words of the corpus.

**Patterns.** A word is letters, digits and underscores, with the combining marks that follow them. Names such as c++,
c# and .net keep their signs. Python's `\\w` excludes combining marks, and would split words of Hindi or Thai, and
decomposed accents, at each. Atomic groups stand where possessive quantifiers would be shorter: those fail over
alternatives before Python 3.11.5.

**Corrections.** A word is corrected if the corpus lacks it in every form or has it in few documents, a word of the
corpus is spelt much like it, and the tokenizer has no token for it: a word that is one token is no mistake, and the
dense leg may find it by its meaning. What looks like a code, an address or a name stays: a word that signs join to
another (covid-19, e-mail), and one with capitals behind its first letter. A better word keeps the case of the first
letter.

**Completions** of the last word, or of what is behind its last hyphen, are words of the corpus that begin with it.

    score(w) = sqrt(documents(w)) * exp(8 * cos(rest, w))

documents(w) is the number of documents that have the word w; the cosine is that of the query vectors of w and of the
query's other words. Without other words or a dense leg, frequency alone decides. A beginning that is a word itself has
four times its score, because it may be typed to its end. Forms of a word that have the same term, such as photo and
photos, are one completion, spelt as the best of them, whose score is the sum of theirs. A completion counts in the
search by the square of its share of the best one's score, and not at all below a tenth.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import numpy as np

from lightretriever.artifacts.dtypes import Float64Array
from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.index import MIN_WORD, Spelling
from lightretriever.artifacts.sparse.vocabulary import words_of
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.filters import all_of
from lightretriever.service.search.request import Plan, outside_quotes


def _marks(points: Iterable[int]) -> str:
    """Return the combining marks among these code points, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for point in points:
        character = chr(point)
        # The first two conditions are for speed; every mark satisfies them.
        if character.isprintable() and not character.isalnum() and unicodedata.category(character)[0] == "M":
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Without ideographs, Hangul and private use, which fill most of the plane and have no marks.
_BASIC: Final = _marks(chain(range(0x300, 0x3400), range(0xA000, 0xAC00), range(0xFB00, 0x10000)))
_FURTHER: Final = _marks(range(0x10000, 0x20000))
# `re` compiles the first class to a table and the second to a list; the lookahead limits the scan to few characters.
_MARK: Final = rf"(?:[{_BASIC}\u200c\u200d]|(?=[\U00010000-\U0001ffff])[{_FURTHER}])"

# Chinese and Japanese have no spaces between words, so each character is a word.
_ALONE: Final = "\u3040-\u3098\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

WORD: Final = re.compile(
    rf"[{_ALONE}](?>{_MARK}*)|(?:(?<!\S)\.(?=[^\W\d_]{{2}}))?(?>(?:[^\W{_ALONE}]++(?>{_MARK}*))+)(?:\+\+(?![\w+])|\#(?![\w#]))?"
)
"""A word. A run of Thai, Lao, Khmer or Burmese, which have no spaces between words either, is one; see `UNSPACED`."""

_PART: Final = rf"(?>(?:[^\W_{_ALONE}](?>{_MARK}*)){{1,20}})"

HYPHENED: Final = re.compile(rf"(?<!\w)((?=[^\W\d_]){_PART})[-\u2010\u2011](?=({_PART})(?!\w))")
"""Two parts with a hyphen between them, such as wi-fi, which are also a word together. Matches end at the hyphen."""

_SIGN: Final = (
    rf"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf](?>{_MARK}*)"
)

SIGN: Final = re.compile(_SIGN)
"""A letter of Thai, Lao, Khmer, Burmese and their neighbours, with its marks."""

UNSPACED: Final = re.compile(rf"(?>(?:{_SIGN})+)")
"""A run of such signs."""

_ENGLISH: Final = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS: Final = frozenset(_ENGLISH.split())
"""Lucene's English stop words, which its analyzer leaves out."""

MAX_COMPLETIONS: Final = 12
"""Most completions of a word."""

MAX_WORDS: Final = 8
"""Most words of a query that are compared with those of the corpus, since each takes milliseconds."""

_CONSIDERED: Final = 100  # most frequent words that are compared with the rest of the query
_NEARNESS: Final = 8.0
_WHOLE: Final = 4.0  # factor of a beginning that is a word
_MIN_SHARE: Final = 0.05  # of the best score; what has less is not suggested
_MIN_WEIGHT: Final = 0.1
_CHUNK: Final = re.compile(r"\S+")
_LAST: Final = re.compile(rf"(?:(?<!\S)|(?<=\w\w[-\u2010\u2011]))(?:[^\W\d_](?>{_MARK}*))+$")
"""The last word of a query, where only blanks, or a hyphen behind two letters, are before it."""


class Completion(NamedTuple):
    """A word that the last one may become. `weight` is how much it counts in the search, 1 for the best one and 0 for
    one that is suggested only."""

    word: str
    weight: float


def read_typed(plan: Plan, words: Spelling, encoder: QueryEncoder) -> Plan:
    """Return a search whose last word is completed if the request has `prefix`, and whose other words are corrected if
    it has `spelling`, with `searched`, `did_you_mean` and `completions` of its answer.

    The last word becomes its likeliest completion; the others count beside it, by their weights.
    """
    query, request, facts = plan.text, plan.request, dict[str, Any]()
    completions, better = list[Completion](), dict[tuple[int, int], str]()
    if request.prefix and (last := _LAST.search(query)) and WORD.fullmatch(last.group()):
        start, end = last.span()
        completions = completions_of(query[start:end].lower(), query[:start], words, encoder, plan.task)
        if completions:
            better[start, end] = completions[0].word
    text = corrected = _replaced(query, better)
    if request.spelling is not None:
        phrases = plan.facts.get("phrases", {})
        loose = outside_quotes(query) if any(phrases.values()) else query
        doubtful = [word for word in _words_alone(loose) if word.span() not in better]
        doubtful = [word for word in doubtful if _is_doubtful(word.group(), encoder.tokenizer)][:MAX_WORDS]
        corrections = words.corrections([word.group().lower() for word in doubtful])
        better |= dict(zip((word.span() for word in doubtful), corrections, strict=True))
        corrected = _replaced(query, better)
    if request.spelling == "auto":
        text = corrected
    excluded = "".join(f" -{word}" for word in plan.excluded)
    if text != query:
        facts["searched"] = text + excluded
    if text != corrected:
        facts["did_you_mean"] = corrected + excluded
    if completions:
        last_word = len(text) - len(completions[0].word), len(text)
        facts["completions"] = [_replaced(text, {last_word: word}) + excluded for word, _ in completions]
    return replace(
        plan,
        text=text,
        added=[completion for completion in completions[1:] if completion.weight > 0],
        facts=plan.facts | facts,
    )


def exclude(plan: Plan, words: Spelling) -> Plan:
    """Return a search among the documents that have none of the words `excluded`, in any of their forms, with
    `excluded` of its answer. Of one with several parts, such as wi-fi, they must not have all. One that no document has
    is text, as an option of a command may be."""
    text, conditions = plan.text, dict[str, tuple[str, ...]]()
    parts = [WORD.findall(word.lower()) for word in plan.excluded]
    forms = iter(words.forms([*chain(*parts)]))  # one call, as each takes milliseconds
    for word, of_word in zip(plan.excluded, parts, strict=True):
        if all(spelt := [*islice(forms, len(of_word))]):
            every = chain(*(("spelt", str(len(spellings)), *spellings) for spellings in spelt))
            conditions[word] = ("not", "and", str(len(spelt)), *every)
        else:
            text += f" -{word}"
    facts = plan.facts | ({"excluded": [*conditions]} if conditions else {})
    condition = all_of(plan.condition, *conditions.values())
    return replace(plan, text=text, excluded=[*conditions], condition=condition, facts=facts)


def completions_of(beginning: str, rest: str, words: Spelling, encoder: QueryEncoder, task: str) -> list[Completion]:
    """Return the completions of a beginning in lower case behind the `rest` of a query, best first.

    A beginning that is itself a word of the corpus is among them. A stop word, and a beginning that no other word has,
    have none.
    """
    listed = words.completions(beginning, _CONSIDERED)
    if not listed or encoder.vocabulary.language is None:
        return []
    names = [word for word, _ in listed]
    documents = np.array([count for _, count in listed], np.float64)
    terms = dict(zip(names, words_of(names, encoder.vocabulary.language), strict=True))
    if terms.get(beginning) == []:
        return []
    factors = np.sqrt(documents) * _nearness(rest, names, encoder, task)
    scores = dict(zip(names, factors.tolist(), strict=True))
    if beginning in scores:
        scores[beginning] *= _WHOLE
    totals = dict[tuple[str, ...], float]()
    spelt = dict[tuple[str, ...], str]()
    for name in sorted(names, key=lambda name: -scores[name]):
        if key := tuple(terms[name]):
            totals[key] = totals.get(key, 0.0) + scores[name]
            spelt.setdefault(key, name)
    best = sorted(totals, key=lambda key: -totals[key])[:MAX_COMPLETIONS]
    shares = [(spelt[key], totals[key] / totals[best[0]]) for key in best]
    likely = [(word, share**2) for word, share in shares if share >= _MIN_SHARE]
    kept = [Completion(word, weight if weight >= _MIN_WEIGHT else 0.0) for word, weight in likely]
    return [] if [completion.word for completion in kept] == [beginning] else kept


def _nearness(rest: str, names: Sequence[str], encoder: QueryEncoder, task: str) -> Float64Array:
    """Return the factor of each word (n,) by its nearness to the rest of the query: 1 where it is not known."""
    if not rest.strip() or task not in encoder.tables:
        return np.ones(len(names))
    try:
        vectors = encoder.vectors([rest, *names], task)
    except TokenizerError:
        return np.ones(len(names))
    cosines = np.einsum("nd,d->n", vectors[1:], vectors[0])  # `@` would start BLAS's threads
    factors: Float64Array = np.exp(_NEARNESS * cosines.astype(np.float64))
    return factors


def _words_alone(query: str) -> Iterator[re.Match[str]]:
    for chunk in _CHUNK.finditer(query):
        words = list(WORD.finditer(query, *chunk.span()))
        if len(words) == 1 and words[0].group().isalpha():
            yield words[0]


def _is_doubtful(word: str, tokenizer: TextTokenizer) -> bool:
    if len(word) < MIN_WORD or word[1:] != word[1:].lower():
        return False
    try:
        return len(tokenizer.query_ids(word)) != 1
    except TokenizerError:
        return False  # encoding the query tells


def _replaced(query: str, better: Mapping[tuple[int, int], str]) -> str:
    """Put other words, which begin with the same letter, in places of a query; "" leaves the word there."""
    for (start, end), word in sorted(better.items(), reverse=True):
        if word:
            query = query[: start + 1] + word[1:] + query[end:]
    return query
