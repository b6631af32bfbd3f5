"""Query vectors in the form of OpenAI's API, for stores that are not this service."""

import base64
from collections.abc import Callable

from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import EmbeddingsRequest
from lightretriever.service.search.answer import Plain
from lightretriever.service.search.encoder import QueryEncoder, require_terms

__all__ = ["embeddings"]


def embeddings(
    encoder: QueryEncoder,
    task: str,
    request: EmbeddingsRequest,
    clock: StageClock,
    require_time: Callable[[StageClock], None],
) -> Plain:
    """Encode each text as a search for a task would, as `EmbeddingsResponse`. `require_time` is called before each and
    may raise; NoTokensError and NoDirectionError name the text as `input.N`."""
    data, tokens, own = list[Plain](), 0, StageClock(clock.arrived)  # a trace needs no span for each of many texts
    for index, text in enumerate(request.input):
        require_time(clock)
        query = encoder.encode(text, task, own, sparse=False, field=f"input.{index}")
        if query.dense is None:
            require_terms([], f"input.{index}", text)
            continue
        tokens += int(query.tokens.counts.sum())
        packed = request.encoding_format == "base64"
        vector = base64.b64encode(query.dense.astype("<f4").tobytes()).decode() if packed else query.dense.tolist()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request.model, "usage": usage}
