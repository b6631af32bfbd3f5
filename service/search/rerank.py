"""A reranking model behind a URL, asked in the form of text-embeddings-inference's `POST /rerank`, or in that of
Cohere, Jina and vLLM, whose requests name the model.

It reads query and documents together, so it is a model in the query path, and off unless the settings have its URL.
"""

import json
import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import orjson
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.settings import Settings

__all__ = ["RERANK", "Reranker"]

RERANK: Final = "rerank"
"""The lane, the stage, and the name in `degraded`."""

_GRACE_S: Final = 1.0  # the caller gives up before, and knows then that it was late
_BATCH: Final = 32  # texts that text-embeddings-inference takes at a time by default
_LONGEST_ANSWER: Final = 4_000_000  # bytes; some servers give every text back


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: followed, it would carry the key to another host."""

    def redirect_request(self, *redirect: object) -> None:
        return None


_OPENER: Final = build_opener(ProxyHandler({}), _NoRedirects())


class Reranker:
    """Asks the model at `url` for the relevance of the first `top` candidates. Thread-safe."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.top = settings.rerank_top
        self._url = url
        self._model = settings.rerank_model
        self._characters = settings.rerank_characters
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if settings.rerank_api_key is not None:
            self._headers["authorization"] = f"Bearer {settings.rerank_api_key}"

    @classmethod
    def of(cls, settings: Settings) -> "Reranker | None":
        """Give that of the settings, if they name one."""
        return None if settings.rerank_url is None else cls(settings.rerank_url, settings)

    def scores(self, query: str, documents: Sequence[dict[str, Any]], until: float) -> list[float]:
        """Give a score for each document, of its title and text, and give up a second after the `perf_counter` time
        `until`. OSError if there is no answer, ValueError if it is not the expected JSON.
        """
        texts = [document_text(*(str(fields.get(name) or "") for name in ("title", "text"))) for fields in documents]
        scores: list[float] = []
        for start in range(0, len(texts), _BATCH):
            if start and perf_counter() > until:
                raise OSError(f"the reranker had read {start} of {len(texts)} texts when the time was over")
            scores += self._of_batch(query, [text[: self._characters] for text in texts[start : start + _BATCH]], until)
        return scores

    def _of_batch(self, query: str, texts: list[str], until: float) -> list[float]:
        if self._model is None:
            asked = {"query": query, "texts": texts, "truncate": True}
        else:
            asked = {"model": self._model, "query": query, "documents": texts, "top_n": len(texts)}
        request = Request(self._url, orjson.dumps(asked), self._headers)
        left_s = max(0.0, until - perf_counter()) + _GRACE_S
        try:
            with _OPENER.open(request, timeout=left_s) as answer:
                content = answer.read(_LONGEST_ANSWER)
        except HTTPError as error:
            raise OSError(f"the reranker answered {error.code}: {error.read(300)!r}") from error
        return _read(content, len(texts), named=self._model is not None)


def _read(content: bytes, count: int, named: bool) -> list[float]:
    """Read a list of one {"index": i, "score": s} for each text, in any order. Where the request named the model, it is
    {"results": list}, and the score is "relevance_score".
    """
    answer = json.loads(content)
    try:
        given, score = (answer["results"], "relevance_score") if named else (answer, "score")
        found = {item["index"]: float(item[score]) for item in given}
        scores = [found[place] for place in range(count)]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"the reranker did not give an index and a score for each text: {content[:200]!r}") from error
    if len(given) != count or not all(map(math.isfinite, scores)):
        raise ValueError(f"the reranker gave {len(given)} scores for {count} texts, or one that is not finite")
    return scores
