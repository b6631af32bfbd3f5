"""Many documents written or deleted, by a journal or on a cluster: only those that changed, and encoded only if their
text did."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Final

from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import ConflictError, LightRetrieverError
from lightretriever.artifacts.live.documents import Change, Deleted, Encode, Encoded, LiveDocuments, Upserted

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
        for name, result in zip(names, live.write([Change(name) for name in names], inf), strict=True):
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

    def change_of(document: Document, version: str | None) -> Change:
        vector, impacts, _ = encoded.get(document.id) or (None, None, False)
        return Change(document.id, document, vector, impacts, version)

    changed = list[tuple[Document, str | None]]()
    for document, (version, same) in zip(documents, live.compare(documents), strict=True):
        counts.unchanged += same
        changed += [] if same else [(document, version)]
    new = [changed[index][0] for index in live.to_encode([change_of(*pair) for pair in changed], inf)]
    encoded |= zip([document.id for document in new], encode(new) if new else [], strict=True)
    again = list[Document]()
    results = live.write([change_of(*pair) for pair in changed], inf)
    for (document, _), result in zip(changed, results, strict=True):
        if isinstance(result, ConflictError):
            again.append(document)
        elif isinstance(result, LightRetrieverError):
            raise result
        else:
            counts.created += result is not None and result.created
            counts.encoded += document.id in encoded
            counts.fields += document.id not in encoded
    return again
