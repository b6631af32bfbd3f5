"""Corrects and completes the words of a query by the words of the corpus.

A word is corrected if the corpus lacks it in every form, a word of the corpus is spelt much like it, and the tokenizer
has no token for it: a word that is one token is no mistake, and the dense leg may find it by its meaning. What looks
like a code, an address or a name stays: a word that signs join to another (covid-19, e-mail), and one with capitals
behind its first letter. A better word keeps the case of the first letter.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.spelling import LEAST_WORD
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.backends.base import Spellings
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.answer import Typed
from lightretriever.service.search.completion import Completion, completions_of
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.words import WORD

__all__ = ["read_typed"]

_MOST_WORDS: Final = 8  # to compare in a query, since each takes milliseconds
_CHUNK: Final = re.compile(r"\S+")


def read_typed(query: str, request: SearchRequest, words: Spellings | None, encoder: QueryEncoder, task: str) -> Typed:
    """Complete the last word if the request has `prefix`, and correct the others if it has `spelling`.

    The last word becomes its likeliest completion; the others count beside it, by their weights.
    """
    if words is None or not (request.prefix or request.spelling):
        return Typed(query, query)
    found = list(_words_alone(query))
    completions, better = list[Completion](), dict[tuple[int, int], str]()
    if request.prefix and found and found[-1].end() == len(query):
        start, end = found[-1].span()
        completions = completions_of(query[start:end].lower(), query[:start], words, encoder, task)
        if completions:
            better[start, end] = completions[0].word
    completed = _replaced(query, better)
    corrected = completed
    if request.spelling is not None:
        doubtful = [word for word in found if word.span() not in better]
        doubtful = [word for word in doubtful if _is_doubtful(word.group(), encoder.tokenizer)][:_MOST_WORDS]
        corrections = words.corrections([word.group().lower() for word in doubtful])
        better |= dict(zip((word.span() for word in doubtful), corrections, strict=True))
        corrected = _replaced(query, better)
    searched = corrected if request.spelling == "auto" else completed
    meant = None if corrected == searched else corrected
    if not completions:
        return Typed(query, searched, meant)
    before, length = len(searched) - len(completions[0].word), len(completions[0].word)
    whole = [_replaced(searched, {(before, before + length): word}) for word, _ in completions]
    return Typed(query, searched, meant, whole, [one for one in completions[1:] if one.weight > 0])


def _words_alone(query: str) -> Iterator[re.Match[str]]:
    """Find the words of letters alone that no sign joins to another word."""
    for chunk in _CHUNK.finditer(query):
        words = list(WORD.finditer(query, *chunk.span()))
        if len(words) == 1 and words[0].group().isalpha():
            yield words[0]


def _is_doubtful(word: str, tokenizer: TextTokenizer) -> bool:
    if len(word) < LEAST_WORD or word[1:] != word[1:].lower():
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
