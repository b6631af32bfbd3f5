"""What a request costs, estimated from the request alone before it runs.

The unit is a usual search: a few words, the default `candidates`, ten hits with their snippets. On the demo bundle it
takes 2 to 3 ms of a processor. Each divisor below is what costs about as much as a usual search.
"""

from collections.abc import Iterable
from typing import Final

from lightretriever.artifacts.sparse.spelling import MOST_WORD
from lightretriever.service.schemas import EmbeddingsRequest, EncodeRequest, SearchRequest
from lightretriever.service.search.filters import count_values
from lightretriever.service.search.request import candidates_of
from lightretriever.service.search.words import MOST_WORDS
from lightretriever.service.settings import Settings

__all__ = ["LIGHT", "cost_of_batch", "cost_of_embeddings", "cost_of_encode", "cost_of_search"]

LIGHT: Final = 8
"""Most that a request may cost to be answered beside usual searches; what costs more waits in a lane of its own."""

_SEARCHED_BYTES: Final = 500  # of query and terms in UTF-8, by both legs; a Chinese sign has three, and is two terms
_ENCODED_BYTES: Final = 1_500  # of a text to encode
_VALUES: Final = 50  # of a filter
_SNIPPETS: Final = 12
_USUAL_SNIPPETS: Final = 20  # title and text of ten hits
_LONG_QUERY: Final = 1_000  # bytes; snippets for a longer one cost twice as much, as more words match
_EXPLAINED: Final = 100  # hits times words
_COMPARED: Final = 20_000  # hits times candidates, for diversity
_EDGES: Final = 5  # of ranges that are counted over all documents
_CORRECTED: Final = 16  # letters of words to correct, if the corpus lacks half of them
_LONG_WORD: Final = 6  # letters; what is like a shorter one is found at once
_UNSPACED: Final = "\u0e00"  # before Thai, all scripts have spaces between words


def cost_of_search(request: SearchRequest, settings: Settings) -> int:
    """Give the cost of a search, at least 1."""
    hits = request.k * request.group_size
    texts = [request.query or "", *(term.text for term in request.terms)]
    size, candidates = _bytes(texts), candidates_of(request, settings)
    cost = -(-candidates // settings.candidates) + size // _SEARCHED_BYTES
    if request.filter is not None:
        cost += count_values(request.filter) // _VALUES
    if request.snippets is not None:
        snippets = max(0, hits * len(set(request.snippets.fields)) - _USUAL_SNIPPETS)
        cost += snippets * (2 if size > _LONG_QUERY else 1) // _SNIPPETS
    if request.explain:
        cost += hits * sum(map(_words, texts)) // _EXPLAINED
    if request.spelling is not None:
        long = sorted(length for length in map(len, texts[0].split()) if _LONG_WORD <= length <= MOST_WORD)
        cost += sum(long[-MOST_WORDS:]) // _CORRECTED
    if request.diversity:
        cost += (request.offset + request.k) * candidates // _COMPARED
    if request.query is None:
        cost += sum(map(len, request.facet_ranges.values())) // _EDGES
    return cost


def cost_of_batch(searches: Iterable[SearchRequest], settings: Settings) -> int:
    """Give the cost of several searches."""
    return sum(cost_of_search(search, settings) for search in searches)


def cost_of_embeddings(request: EmbeddingsRequest, settings: Settings) -> int:
    """Give the cost of texts to encode, at least one for each `max_batch` of them."""
    return -(-len(request.input) // settings.max_batch) + _bytes(request.input) // _ENCODED_BYTES


def cost_of_encode(request: EncodeRequest) -> int:
    """Give the cost of a text whose vector, terms and tokens are listed, at least 1."""
    return 1 + _bytes([request.text]) // _SEARCHED_BYTES


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _words(text: str) -> int:
    """The words of a text, where each sign of a script without spaces counts as one."""
    return len(text.split()) + (0 if text.isascii() else sum(sign >= _UNSPACED for sign in text))
