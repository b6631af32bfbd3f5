"""Many documents written to a journal, or deleted: only those that changed, and encoded only if their text did."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Final

from lightretriever.artifacts.corpus.beir import Document
from lightretriever.artifacts.errors import ConflictError, LightRetrieverError, UnencodedError
from lightretriever.artifacts.live.documents import Change, Deleted, Encode, Result, Upserted
from lightretriever.artifacts.live.store import LiveStore

__all__ = ["delete", "upsert"]

_BATCH: Final = 256
_ATTEMPTS: Final = 5  # to write over versions that others change meanwhile


def upsert(live: LiveStore, documents: Iterable[Document], encode: Encode, done: Callable[[int], object]) -> Upserted:
    """Write the documents that are not there or are otherwise. Those whose title and text are there already keep their
    vectors and impacts; `encode` is asked for the others. `done` is told numbers of documents.

    A stopped call, made again, writes the rest. Raises what `LiveStore.write` and `encode` raise.
    """
    counts, rest = Upserted(), iter(documents)
    while part := list(islice(rest, _BATCH)):
        todo = part
        for _ in range(_ATTEMPTS):
            if not (todo := _write(live, todo, encode, counts)):
                break
        else:
            raise ConflictError(f"Others change document {todo[0].id!r} all the time.", remedy="Try again.")
        done(len(part))
    return counts


def delete(live: LiveStore, ids: Iterable[str], done: Callable[[int], object]) -> Deleted:
    """Delete documents by their ids. Raises what `LiveStore.write` raises."""
    counts, rest = Deleted(), iter(ids)
    while part := list(islice(rest, _BATCH)):
        results = live.write([Change(one) for one in dict.fromkeys(part)], inf)
        missing = sum(one is None for one in results)
        counts.missing += missing
        counts.deleted += len(results) - missing
        done(len(part))
    return counts


def _write(live: LiveStore, documents: Sequence[Document], encode: Encode, counts: Upserted) -> list[Document]:
    """Write those of a batch that changed, and give the documents that others changed meanwhile."""
    changes, again = list[Change](), dict[str, Document]()
    for document in documents:
        stored = live.get(document.id)
        if stored is not None and stored.raw == document.raw:
            counts.unchanged += 1
        else:
            changes.append(Change(document.id, document, version=None if stored is None else stored.version))
    new = list[Change]()
    for change, result in zip(changes, live.write(changes, inf), strict=True):
        if isinstance(result, UnencodedError):
            new.append(change)
        elif _kept(result, change, again):
            counts.fields += 1
    texts = [one.document for one in new if one.document is not None]
    encoded = encode(texts) if texts else []
    whole = [
        Change(change.id, change.document, vector, impacts, change.version)
        for change, (vector, impacts) in zip(new, encoded, strict=True)
    ]
    for change, result in zip(whole, live.write(whole, inf), strict=True):
        if _kept(result, change, again):
            counts.encoded += 1
            counts.created += not isinstance(result, LightRetrieverError) and result is not None and result.created
    return list(again.values())


def _kept(result: Result, change: Change, again: dict[str, Document]) -> bool:
    """Tell whether a change was made; note the document if others were faster."""
    if isinstance(result, ConflictError) and change.document is not None:
        again[change.id] = change.document
        return False
    if isinstance(result, LightRetrieverError):
        raise result
    return True
