"""Reading one document, outside of a search."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lightretriever.artifacts.tokens.tokenizer import TextTokenizer, document_text
from lightretriever.service.errors import DeadlineError, DocumentNotFoundError, SearchFailedError
from lightretriever.service.execution.jobs import Steps
from lightretriever.service.execution.lanes import Lane, LateError, StuckError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import DocumentTerm, DocumentTerms

__all__ = ["list_terms", "read_one"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


def read_one(
    lane: Lane, read: Callable[[str], T | None], document_id: str, clock: StageClock, until: float
) -> Steps[T]:
    """Read something of a document in the documents' lane until the `perf_counter` time `until`.

    DocumentNotFoundError if there is no such document, DeadlineError, SearchFailedError.
    """
    try:
        call = lane.call(until, read, document_id)
        yield [call]
        found, started, ended = call.result()
    except StuckError as error:
        raise DeadlineError("The document can't be read: all threads for it are held. Try later.") from error
    except LateError as error:
        allowed = (until - clock.arrived) * 1e3
        raise DeadlineError(f"The document was not read within {allowed:g} ms.") from error
    except Exception as error:
        _log.exception("document failed")
        raise SearchFailedError("The document could not be read. The reason is in the log.") from error
    clock.took("fetch", started, ended)
    if found is None:
        raise DocumentNotFoundError(f"No document has the id {document_id[:100]!r}.")
    return found


def list_terms(
    document_id: str, impacts: Mapping[int, int], fields: Mapping[str, Any], tokenizer: TextTokenizer
) -> DocumentTerms:
    """Give the terms of a document by descending impact, and which of them its title and text have."""
    text = document_text(*(str(fields.get(name) or "") for name in ("title", "text")))
    own = set(tokenizer.encode(text).tolist())
    terms = [
        DocumentTerm(id=term, token=tokenizer.token(term), impact=impacts[term], in_text=term in own)
        for term in sorted(impacts, key=lambda term: (-impacts[term], term))
    ]
    return DocumentTerms(id=document_id, terms=terms)
