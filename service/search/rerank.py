"""A reranking model behind a URL, asked in the form of text-embeddings-inference's `POST /rerank`, or in that of
Cohere, Jina and vLLM, whose requests name the model.

It reads query and documents together, so it is a model in the query path, and off unless the settings have its URL.
"""

import json
import logging
import math
from collections.abc import Sequence
from threading import Condition
from time import perf_counter
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import orjson
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.settings import Settings

__all__ = ["RERANK", "Reranker", "Turns"]

_log = logging.getLogger(__name__)

RERANK: Final = "rerank"
"""The lane, the stage, and the name in `degraded`."""

_GRACE_S: Final = 1.0  # the caller gives up before, and knows then that it was late
_BATCH: Final = 32  # texts that text-embeddings-inference takes at a time by default
_LONGEST_ANSWER: Final = 4_000_000  # bytes; some servers give every text back
_FAILURES: Final = 3  # in a row, after which the model is left alone
_PAUSE_S: Final = 5.0


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: followed, it would carry the key to another host."""

    def redirect_request(self, *redirect: object) -> None:
        return None


_OPENER: Final = build_opener(ProxyHandler({}), _NoRedirects())


class Turns:
    """Decides which searches ask the model, so that one that hangs or fails doesn't stop the others. Thread-safe.

    At most `most` searches wait for the model at a time. Another one waits for a turn, at most its `patience_s`, and
    not at all while a search has waited longer than that already. After three searches in a row without an answer, none
    asks for five seconds, and then one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition()
        self._asking: list[float] = []  # `perf_counter` times
        self._failed = 0
        self._closed_until = 0.0

    def take(self, patience_s: float) -> bool:
        """Take a turn, to be given back by `end`; False if the search must go on without the model."""
        until = perf_counter() + patience_s
        with self._changed:
            while len(self._asking) >= self._most:
                left_s = min(until, self._asking[0] + patience_s) - perf_counter()
                if left_s <= 0 or self._failed >= _FAILURES:
                    return False
                self._changed.wait(left_s)
            now = perf_counter()
            if self._failed >= _FAILURES:
                if now < self._closed_until:
                    return False
                self._closed_until = now + _PAUSE_S
            self._asking.append(now)
            return True

    def end(self, *, answered: bool) -> None:
        """Give back the turn of a search that the model answered, or failed to answer in time."""
        with self._changed:
            del self._asking[0]
            self._failed = 0 if answered else self._failed + 1
            if self._failed == _FAILURES:
                self._closed_until = perf_counter() + _PAUSE_S
                _log.warning(
                    "the reranking model gave %d searches no answer; searches go on without it, and one asks again "
                    "after %g s",
                    _FAILURES,
                    _PAUSE_S,
                )
            self._changed.notify_all()


class Reranker:
    """Asks the model at `url` for the relevance of the first `top` candidates. Thread-safe."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.top = settings.rerank_top
        self.turns = Turns(max(1, settings.threads() - 1))
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
