"""Converts texts with metadata, as other libraries have them, to documents of the service, and writes these."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from lightretriever.service.client.errors import AnswerError, ClientError
from lightretriever.service.client.hits import SCORES
from lightretriever.service.client.sync import SearchClient

__all__ = ["add", "delete", "document_of"]

_ENCODED: Final = ("vector", "impacts")
_MOST_NAMED: Final = 5


def document_of(document_id: str, text: str, metadata: Mapping[str, Any], text_field: str) -> dict[str, Any]:
    """Give a document for `add`: its fields are the metadata and the text.

    `vector` and `impacts` of the metadata are those of the document. Metadata as `hits.hit_metadata` gives them become
    the fields that they were made of.
    """
    fields = {name: value for name, value in metadata.items() if name not in _ENCODED}
    if fields.keys() >= set(SCORES):  # a search gave them, which adds all of these
        kept = {name: value for name, value in fields.items() if name not in SCORES}
        fields = {_own_name(name): value for name, value in kept.items()}
    encoded = {name: metadata[name] for name in _ENCODED if name in metadata}
    return {"id": document_id, "fields": {**fields, text_field: text}, **encoded}


def _own_name(name: str) -> str:
    own = name.removeprefix("document_")
    return own if own in SCORES else name


def add(client: SearchClient, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write documents in their order: those with impacts many at once, others one by one, since a service with a model
    encodes them so.

    AnswerError names the id of a bad document, ClientError those of documents that were refused. Documents before them
    are written.
    """
    for encoded, run in groupby(documents, key=lambda document: "impacts" in document):
        if encoded:
            refused = [one for one in client.put_documents(run) if one.result == "refused"]
            if refused:
                told = "; ".join(f"{one.id!r}: {one.reason}" for one in refused[:_MOST_NAMED])
                raise ClientError(f"{len(refused)} documents were refused: {told}")
        else:
            for document in run:
                _put(client, document)


def _put(client: SearchClient, document: Mapping[str, Any]) -> None:
    try:
        client.put_document(document["id"], document["fields"], vector=document.get("vector"))
    except AnswerError as error:
        raise error.of_document(document["id"]) from error


def delete(client: SearchClient, ids: Iterable[str]) -> bool:
    """Delete documents. False if one of the ids has none; the others are deleted. Errors as in `add`."""
    told = client.put_documents({"id": document_id, "delete": True} for document_id in ids)
    return all(one.result == "deleted" for one in told)
