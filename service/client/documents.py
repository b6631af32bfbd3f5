"""Converts hits to texts with metadata, as other libraries have them, and such texts to documents; writes these."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from lightretriever.service.client.errors import ClientError
from lightretriever.service.client.sync import SearchClient
from lightretriever.service.schemas import Hit, SearchResponse

SCORES: Final = (
    *("id", "rank", "score", "dense_score", "dense_rank", "sparse_score", "sparse_rank"),
    *("matched", "degraded"),
)
"""Keys of a hit's metadata that describe the search; all others are fields of the document."""
_ENCODED: Final = ("vector", "impacts")


def texts_of(response: SearchResponse, text_field: str) -> Iterator[tuple[Hit, str, dict[str, Any]]]:
    """Yield each hit with its text, or its title if the text is empty, and its metadata: all other fields, and `SCORES`
    (None: not told), whose names in fields become `document_NAME`."""
    for hit in response.hits:
        text = str(hit.fields.get(text_field) or hit.fields.get("title") or "")
        others = {name: value for name, value in hit.fields.items() if name != text_field}
        metadata = {f"document_{name}" if name in SCORES else name: value for name, value in others.items()}
        metadata |= {"id": hit.id, "rank": hit.rank, "score": hit.score}
        for name, leg in (("dense", hit.dense), ("sparse", hit.sparse)):
            metadata |= {f"{name}_score": leg and leg.score, f"{name}_rank": leg and leg.rank}
        yield hit, text, metadata | {"matched": hit.matched, "degraded": ", ".join(response.degraded)}


def document_of(document_id: str, text: str, metadata: Mapping[str, Any], text_field: str) -> dict[str, Any]:
    """Return a document for `add`: its fields are the metadata and the text; `vector` and `impacts` are its own.
    Metadata of `texts_of`, which have all of `SCORES`, become the fields that they were made of."""
    fields = {name: value for name, value in metadata.items() if name not in _ENCODED}
    if fields.keys() >= set(SCORES):
        renamed = {f"document_{name}": name for name in SCORES}
        fields = {renamed.get(name, name): value for name, value in fields.items() if name not in SCORES}
    encoded = {name: metadata[name] for name in _ENCODED if name in metadata}
    return {"id": document_id, "fields": {**fields, text_field: text}, **encoded}


def add(client: SearchClient, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write documents in their order: those with impacts many at once, others one by one, as a model of the service has
    its time for each. Errors name the document; those before it are written."""
    for encoded, run in groupby(documents, key=lambda document: "impacts" in document):
        changes = client.put_documents(run, batch_size=32 if encoded else 1)
        if refused := [f"{change.id!r}: {change.reason}" for change in changes if change.result == "refused"]:
            raise ClientError(f"{len(refused)} documents were refused: {'; '.join(refused[:5])}")


def delete(client: SearchClient, ids: Iterable[str]) -> bool:
    """Delete documents. False if one of the ids has none; the others are deleted."""
    changes = client.put_documents({"id": document_id, "delete": True} for document_id in ids)
    return all(change.result == "deleted" for change in changes)
