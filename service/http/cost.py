"""What a request costs, estimated from the request alone before it runs.

The unit is a usual search: a few words, the default `candidates`, ten hits with their snippets. On the demo bundle it
takes 2 to 3 ms of a processor. Each divisor below is what costs about as much as a usual search.
"""

from collections.abc import Iterable
from typing import Final

from lightretriever.service.schemas import EmbeddingsRequest, EncodeRequest, SearchRequest
from lightretriever.service.search.filters import count_values
from lightretriever.service.search.request import candidates_of
from lightretriever.service.settings import Settings

__all__ = ["LIGHT", "cost_of_batch", "cost_of_embeddings", "cost_of_encode", "cost_of_search"]

LIGHT: Final = 8
"""Most that a request may cost to be answered beside usual searches; what costs more waits in a lane of its own."""

_SEARCHED_CHARACTERS: Final = 500  # of query and terms, by both legs
_ENCODED_CHARACTERS: Final = 1_500  # of a text to encode
_VALUES: Final = 50  # of a filter
_SNIPPETS: Final = 12
_USUAL_SNIPPETS: Final = 20  # title and text of ten hits
_LONG_QUERY: Final = 1_000  # characters; snippets for a longer one cost twice as much, as more words match
_EXPLAINED: Final = 100  # hits times words
_COMPARED: Final = 20_000  # hits times candidates, for diversity


def cost_of_search(request: SearchRequest, settings: Settings) -> int:
    """Give the cost of a search, at least 1."""
    hits = request.k * request.group_size
    texts = [request.query or "", *(term.text for term in request.terms)]
    characters, candidates = sum(map(len, texts)), candidates_of(request, settings)
    cost = -(-candidates // settings.candidates) + characters // _SEARCHED_CHARACTERS
    if request.filter is not None:
        cost += count_values(request.filter) // _VALUES
    if request.snippets is not None:
        snippets = max(0, hits * len(set(request.snippets.fields)) - _USUAL_SNIPPETS)
        cost += snippets * (2 if characters > _LONG_QUERY else 1) // _SNIPPETS
    if request.explain:
        cost += hits * sum(len(text.split()) for text in texts) // _EXPLAINED
    if request.diversity:
        cost += (request.offset + request.k) * candidates // _COMPARED
    return cost


def cost_of_batch(searches: Iterable[SearchRequest], settings: Settings) -> int:
    """Give the cost of several searches."""
    return sum(cost_of_search(search, settings) for search in searches)


def cost_of_embeddings(request: EmbeddingsRequest, settings: Settings) -> int:
    """Give the cost of texts to encode, at least one for each `max_batch` of them."""
    return -(-len(request.input) // settings.max_batch) + sum(map(len, request.input)) // _ENCODED_CHARACTERS


def cost_of_encode(request: EncodeRequest) -> int:
    """Give the cost of a text whose vector, terms and tokens are listed, at least 1."""
    return 1 + len(request.text) // _SEARCHED_CHARACTERS
