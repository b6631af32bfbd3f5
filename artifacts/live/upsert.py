"""Many documents written or deleted, by a journal or on a cluster: only those that changed, and encoded only if their
text did."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Final

from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import ConflictError, LightRetrieverError, UnencodedError
from lightretriever.artifacts.live.documents import Change, Deleted, Encode, Encoded, LiveDocuments, Result, Upserted

__all__ = ["delete", "upsert"]

_BATCH: Final = 256
_EXAMPLES: Final = 3  # ids that no document had
_ATTEMPTS: Final = 5  # to write over versions that others change meanwhile


def upsert(
    live: LiveDocuments, documents: Iterable[Document], encode: Encode, done: Callable[[int], object]
) -> Upserted:
    """Write the documents that are not there or are otherwise. Those whose title and text are there already keep their
    vectors and impacts; `encode` is asked for the others. `done` is told numbers of documents.

    A stopped call, made again, writes the rest. Raises what `write` and `encode` raise.
    """
    counts, rest = Upserted(), iter(documents)
    while part := list(islice(rest, _BATCH)):
        todo, encoded = part, dict[str, Encoded]()
        for _ in range(_ATTEMPTS):
            if not (todo := _write(live, todo, encode, encoded, counts)):
                break
        else:
            raise ConflictError(f"Others change document {todo[0].id!r} all the time.", remedy="Try again.")
        done(len(part))
    live.refresh()
    return counts


def delete(live: LiveDocuments, ids: Iterable[str], done: Callable[[int], object]) -> Deleted:
    """Delete documents by their ids. Raises what `write` raises."""
    counts, rest = Deleted(), iter(ids)
    while part := list(islice(rest, _BATCH)):
        names = list(dict.fromkeys(part))
        for name, result in zip(names, live.write([Change(one) for one in names], inf), strict=True):
            if isinstance(result, LightRetrieverError):
                raise result
            counts.missing += result is None
            counts.deleted += result is not None
            if result is None and len(counts.examples) < _EXAMPLES:
                counts.examples.append(name)
        done(len(part))
    live.refresh()
    return counts


def _write(
    live: LiveDocuments, documents: Sequence[Document], encode: Encode, encoded: dict[str, Encoded], counts: Upserted
) -> list[Document]:
    """Write those of a batch that changed, and give the documents that others changed meanwhile. `encoded` has what was
    encoded of the batch."""
    changes, new, again = list[Change](), list[Document](), list[Document]()
    for document, (version, same) in zip(documents, live.known(documents), strict=True):
        counts.unchanged += same
        if not same:
            known = encoded.get(document.id)
            vector, impacts = (None, None) if known is None else (known.vector, known.impacts)
            changes.append(Change(document.id, document, vector, impacts, version))
    versions = {change.id: change.version for change in changes}
    for change, result in zip(changes, live.write(changes, inf), strict=True):
        if isinstance(result, UnencodedError) and change.document is not None:
            new.append(change.document)
        else:
            _count(change, result, encoded, counts, again)
    if new:
        encoded |= zip([one.id for one in new], encode(new), strict=True)
    whole = [Change(one.id, one, *encoded[one.id][:2], versions[one.id]) for one in new]
    for change, result in zip(whole, live.write(whole, inf), strict=True):
        _count(change, result, encoded, counts, again)
    return again


def _count(
    change: Change, result: Result, encoded: dict[str, Encoded], counts: Upserted, again: list[Document]
) -> None:
    """Count a change that was made; note the document if others were faster."""
    if isinstance(result, ConflictError) and change.document is not None:
        again.append(change.document)
        return
    if isinstance(result, LightRetrieverError):
        raise result
    counts.created += result is not None and result.created
    counts.encoded += change.id in encoded
    counts.fields += change.id not in encoded
