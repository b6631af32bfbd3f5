"""Many documents written to an index, or deleted: only those that changed, and encoded only if their text did."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from lightretriever.artifacts.cluster.bodies import Stored, body_of
from lightretriever.artifacts.cluster.bulk import BATCH, refusal, send
from lightretriever.artifacts.cluster.live import HASHES, LiveIndex, put_action
from lightretriever.artifacts.cluster.schema import document_hashes
from lightretriever.artifacts.corpus.beir import Document
from lightretriever.artifacts.errors import ClusterError, ConflictError
from lightretriever.artifacts.live.documents import Change, Deleted, Encode, Encoded, Upserted

__all__ = ["delete", "upsert"]

_ATTEMPTS: Final = 5  # to write over versions that others change meanwhile
_AGAIN: Final = "Run the same command again: it goes on with what is missing."


@dataclass
class _Batch:
    """Documents on their way, with what the index has of them, and what was encoded of them."""

    documents: Sequence[Document]
    stored: Sequence[Stored | None]
    encoded: dict[str, Encoded]


def upsert(live: LiveIndex, documents: Iterable[Document], encode: Encode, done: Callable[[int], object]) -> Upserted:
    """Write the documents that the index lacks or has otherwise. Those whose title and text are there already keep
    their vectors and impacts; `encode` is asked for the others, before any document of their batch is written. `done`
    is told numbers of documents. Makes them visible at the end.

    A stopped call, made again, writes the rest. Raises ClusterError, and what `encode` raises.
    """
    counts, rest = Upserted(), iter(documents)
    while part := list(islice(rest, BATCH)):
        todo, encoded = part, dict[str, Encoded]()
        for _ in range(_ATTEMPTS):
            found = live.read([one.id for one in todo], fields=HASHES)
            batch = _changed(todo, found, encoded)
            counts.unchanged += len(todo) - len(batch.documents)
            _encode(batch, encode)
            if not (todo := _write(live, batch, counts)):
                break
        else:
            raise ConflictError(f"Others change document {todo[0].id!r} all the time.", remedy=_AGAIN)
        done(len(part))
    _finish(live)
    return counts


def delete(live: LiveIndex, ids: Iterable[str], done: Callable[[int], object]) -> Deleted:
    """Delete documents by their ids, and make that visible at the end. Raises ClusterError."""
    counts, rest = Deleted(), iter(ids)
    while part := list(islice(rest, BATCH)):
        for item in _send(live, ({"_op_type": "delete", "_id": one} for one in dict.fromkeys(part))):
            if (error := refusal(live.cluster, item)) is not None:
                raise error
            counts.deleted += item["result"] == "deleted"
            counts.missing += item["result"] == "not_found"
        done(len(part))
    _finish(live)
    return counts


def _changed(documents: Sequence[Document], stored: Sequence[Stored | None], encoded: dict[str, Encoded]) -> _Batch:
    """Leave out the documents that the index has as they are."""
    pairs = [
        (document, there)
        for document, there in zip(documents, stored, strict=True)
        if there is None or there.source["hashes"] != document_hashes(document.full_text, document.raw)
    ]
    return _Batch([one for one, _ in pairs], [there for _, there in pairs], encoded)


def _has_text(document: Document, stored: Stored | None) -> bool:
    return stored is not None and stored.source["hashes"][0] == document_hashes(document.full_text, b"")[0]


def _encode(batch: _Batch, encode: Encode) -> None:
    """Encode the documents whose text the index lacks."""
    new = [
        document
        for document, stored in zip(batch.documents, batch.stored, strict=True)
        if not _has_text(document, stored) and document.id not in batch.encoded
    ]
    if new:
        batch.encoded |= zip([one.id for one in new], encode(new), strict=True)


def _write(live: LiveIndex, batch: _Batch, counts: Upserted) -> list[Document]:
    """Write a batch, and give the documents that others changed meanwhile."""
    kept = [one.id for one in batch.documents if one.id not in batch.encoded]
    whole = dict(zip(kept, live.read(kept), strict=True)) if kept else {}
    actions, conflicts, by_id = [], list[Document](), dict[str, tuple[Document, bool]]()
    for document, stored in zip(batch.documents, batch.stored, strict=True):
        vector, impacts = batch.encoded.get(document.id, (None, None))
        over = whole.get(document.id, stored)
        if impacts is None and not _has_text(document, over):  # changed since its hashes were read
            conflicts.append(document)
            continue
        by_id[document.id] = document, over is None
        body = body_of(Change(document.id, document, vector, impacts), over, live.meta)
        ((operation, about),) = put_action(document.id, over).items()
        actions.append({"_op_type": operation, **about, "_source": body})
    for item in _send(live, actions) if actions else ():
        document, new = by_id[item["_id"]]
        error = refusal(live.cluster, item)
        if isinstance(error, ConflictError):
            conflicts.append(document)
            continue
        if error is not None:
            raise ClusterError(error.message, remedy=f"{error.remedy} {_AGAIN}") from error
        counts.created += new
        counts.encoded += document.id in batch.encoded
        counts.fields += document.id not in batch.encoded
    return conflicts


def _send(live: LiveIndex, actions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Send actions, unless the alias was given to another index meanwhile."""
    live.check_alias()
    live.mark()
    return send(live.cluster, live.index, actions)


def _finish(live: LiveIndex) -> None:
    with live.cluster.translated():
        live.cluster.client.indices.refresh(index=live.index)
    live.check_alias()
