"""Single documents written to an index, and deleted from it, while services search it.

A document is always written whole, over the version that was read, so a change of its fields can't lose its vector or
its impacts, nor what another writer has written meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from time import perf_counter
from typing import Any, Final

from lightretriever.artifacts.cluster.aliases import only_index, read_index
from lightretriever.artifacts.cluster.client import BATCH, Cluster, refusal, send
from lightretriever.artifacts.cluster.schema import (
    MAX_PLAIN_IMPACT,
    IndexMeta,
    document_body,
    document_hashes,
    features,
    live_ordinal,
)
from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError, ConflictError, DocumentError
from lightretriever.artifacts.live.documents import (
    Change,
    LiveDocuments,
    Result,
    StoredDocument,
    Written,
    check_version,
    unencoded,
    with_new_text,
)

_HASHES: Final = ("ordinal", "hashes")  # the fields of a document that tell whether it changed

_ATTEMPTS: Final = 5  # to write over a version that others change meanwhile


@dataclass(frozen=True)
class Stored(StoredDocument):
    """A document as an index has it: also its `_source`, or the part of it that was asked for, in which `raw` may be
    missing, and what tells its version there."""

    source: Mapping[str, Any]
    seq_no: int
    primary_term: int


class LiveIndex(LiveDocuments):
    """The index that an alias stands for, to be written to. Thread-safe.

    `wait` makes a call return only when searches see the change, which is within a second without it. Calls end by
    the `perf_counter` time `deadline`. ClusterError if the cluster does not take a change, or if the alias was given to
    another index meanwhile; ClusterTimeoutError leaves open whether the change was made.
    """

    def __init__(self, cluster: Cluster, alias: str, index: str, meta: IndexMeta) -> None:
        self.cluster = cluster
        self.index = index
        self.meta = meta
        self.most_impact = MAX_IMPACT if meta.large else MAX_PLAIN_IMPACT
        self._alias = alias

    def get(self, document_id: str, deadline: float) -> Stored | None:
        """Read a document as it is now, whether searches see it or not; None if there is none with this id."""
        return self._read([document_id], self._present(deadline)[1], deadline)[0]

    def compare(self, documents: Sequence[Document]) -> list[tuple[str | None, bool]]:
        """Return for each document the version that is there, None for none, and whether it is the same."""
        _, uuid = self._present(inf)
        pairs = zip(documents, self._read([document.id for document in documents], uuid, fields=_HASHES), strict=True)
        return [
            (None, False)
            if stored is None
            else (stored.version, stored.source["hashes"] == document_hashes(document.full_text, document.raw))
            for document, stored in pairs
        ]

    def write(self, changes: Sequence[Change], deadline: float, *, wait: bool = False) -> list[Result]:
        """Make changes in their order, and give what became of each."""
        results: list[Result] = [None] * len(changes)
        for run in _runs(changes):
            for _ in range(_ATTEMPTS):
                run = self._make(changes, run, results, deadline, wait=wait)
                if not run:
                    break
            for index in run:
                message = f"Document {changes[index].id!r} was changed by others {_ATTEMPTS} times."
                results[index] = ConflictError(message, remedy="Try again.")
        return results

    def to_encode(self, changes: Sequence[Change], deadline: float) -> list[int]:
        """Return the indexes of the changes that need a vector and impacts and have neither."""
        asked = (change for change in changes if change.document and change.vector is None and change.impacts is None)
        ids = list(dict.fromkeys(change.id for change in asked))
        stored = dict(zip(ids, self._read(ids, "", deadline, _HASHES) if ids else [], strict=True))

        def has_text(document: Document) -> bool:
            there = stored[document.id]
            return there is not None and there.source["hashes"][0] == document_hashes(document.full_text, b"")[0]

        return with_new_text(changes, has_text)

    def refresh(self) -> None:
        """Make what was written visible to searches."""
        with self.cluster.translated():
            self.cluster.client.indices.refresh(index=self.index)
        self.check_alias()

    def _make(
        self, changes: Sequence[Change], run: Sequence[int], results: list[Result], deadline: float, *, wait: bool
    ) -> list[int]:
        """Make the changes at these places, of different documents, and set their results. Give the places of those
        that others have changed meanwhile, and that are not for one version alone."""
        actions, places, again = list[dict[str, Any]](), list[int](), list[int]()
        meta, uuid = self._present(deadline)  # may be another one now, under the same name
        stored = self._read_for([changes[index] for index in run], uuid, deadline)
        for index, there in zip(run, stored, strict=True):
            try:
                action = self._action(changes[index], there)
            except (DocumentError, ConflictError) as error:
                results[index] = error
                continue
            if action is not None:
                actions.append(action)
                places.append(index)
        if not actions:
            return []
        if not meta.live:  # from now on the index no longer has the documents of its bundle alone
            body = {"_meta": meta.model_copy(update={"live": True}).model_dump()}
            with self.cluster.translated():
                self.cluster.client.indices.put_mapping(index=self.index, body=body)
        new = {index: there is None for index, there in zip(run, stored, strict=True)}
        items = send(self.cluster, self.index, actions, **_limits(deadline, wait=wait))
        for index, item in zip(places, items, strict=True):
            refused = refusal(self.cluster, item)
            if refused is None:
                written = Written(new[index], _stored(item, {}, uuid).version)
                results[index] = None if item["result"] == "not_found" else written
            elif not isinstance(refused, ConflictError):
                raise refused
            elif changes[index].version is None:
                again.append(index)
            else:
                results[index] = refused
        self.check_alias()
        return again

    def _read_for(self, changes: Sequence[Change], uuid: str, deadline: float) -> list[Stored | None]:
        """Read what is there of documents that will change: vector and impacts only of those that keep them."""
        stored = dict(
            zip(ids := [change.id for change in changes], self._read(ids, uuid, deadline, _HASHES), strict=True)
        )
        kept = [
            change.id
            for change in changes
            if change.document is not None
            and (change.impacts is None or (change.vector is None and self.meta.dimension is not None))
            and (there := stored[change.id]) is not None
            and there.source["hashes"][0] == document_hashes(change.document.full_text, b"")[0]
        ]
        if kept:
            stored |= zip(kept, self._read(kept, uuid, deadline), strict=True)
        return [stored[document_id] for document_id in ids]

    def _action(self, change: Change, stored: Stored | None) -> dict[str, Any] | None:
        """Return the action of a bulk request, None where there is nothing to delete: a document whole, with the vector
        or the rank features of the one that is there if there are no new ones. ConflictError; UnencodedError if that
        one has another text."""
        check_version(change, stored)
        over = {} if stored is None else {"if_seq_no": stored.seq_no, "if_primary_term": stored.primary_term}
        if (document := change.document) is None:
            versioned = over if change.version is not None else {}
            return None if stored is None else {"_op_type": "delete", "_id": change.id, **versioned}
        hashes, dense = document_hashes(document.full_text, document.raw), self.meta.dimension is not None
        no_vector = change.vector is None and dense
        if (no_vector or change.impacts is None) and (stored is None or stored.source["hashes"][0] != hashes[0]):
            raise unencoded(change, new=stored is None, dense=dense)
        new = {"ordinal": live_ordinal(document.id)}
        old: Mapping[str, Any] = new if stored is None else stored.source
        vector = old["vector"] if no_vector else change.vector
        impacts = old["impacts"] if change.impacts is None else features(change.impacts)
        body = document_body(old["ordinal"], document.raw, vector, impacts, self.meta.fields)
        return {"_op_type": "create" if stored is None else "index", "_id": change.id, **over, "_source": body}

    def _read(
        self, ids: Sequence[str], uuid: str, deadline: float | None = None, fields: Sequence[str] | None = None
    ) -> list[Stored | None]:
        """Read documents as they are now, all of each or only some `fields`; None for an id that no document has.
        `uuid` is that of the index."""
        params: dict[str, Any] = {} if fields is None else {"_source_includes": ",".join(fields)}
        if deadline is not None and deadline < inf:
            params |= {"request_timeout": _left(deadline)}
        with self.cluster.translated():
            answers = self.cluster.client.mget(index=self.index, body={"ids": list(ids)}, params=params)["docs"]
        for answer in answers:
            if "error" in answer:
                reason = f"{answer['error'].get('type')}: {answer['error'].get('reason')}"
                what = f"{self.cluster.name} can't read document {answer['_id']!r}: {reason:.300}."
                raise ClusterError(what, remedy="Look at the cluster's logs.")
        return [_stored(answer, answer["_source"], uuid) if answer["found"] else None for answer in answers]

    def _present(self, deadline: float) -> tuple[IndexMeta, str]:
        """Read what the index that has this name now was written from, and its UUID."""
        return read_index(self.cluster, self.index, None if deadline == inf else _left(deadline))

    def check_alias(self) -> None:
        """Raise ClusterError if the alias stands for another index now, which lacks what was just written."""
        if (now := only_index(self.cluster, self._alias)) != self.index:
            raise ClusterError(
                f"{self._alias} became {now} while {self.index} was written to.", remedy="Repeat the change."
            )


def _stored(answer: Mapping[str, Any], source: Mapping[str, Any], uuid: str) -> Stored:
    """Return what the cluster says of a document. Its version has a hash of the index' UUID, because another one counts
    from 0 again, and one restored from a snapshot from there."""
    seq_no, term = answer["_seq_no"], answer["_primary_term"]
    version = f"{seq_no}.{term}.{blake2b(uuid.encode(), digest_size=6).hexdigest()}"
    return Stored(source.get("raw", "").encode(), version, source, seq_no, term)


def _runs(changes: Sequence[Change]) -> Iterator[list[int]]:
    """Return the places of changes in runs: in order, no document twice, and of up to `BATCH`."""
    run, ids = list[int](), set[str]()
    for index, change in enumerate(changes):
        if change.id in ids or len(run) == BATCH:
            yield run
            run, ids = [], set()
        run.append(index)
        ids.add(change.id)
    if run:
        yield run


def _limits(deadline: float, *, wait: bool) -> dict[str, Any]:
    """Return the options of a bulk request that ends by `deadline`: one that has time is sent again where the cluster
    is busy."""
    visible = {"refresh": "wait_for"} if wait else {}
    if deadline == inf:
        return visible
    left = _left(deadline)
    return {"max_retries": 0, "request_timeout": left, "timeout": f"{max(1, round(left * 1e3))}ms", **visible}


def _left(deadline: float) -> float:
    if (left := deadline - perf_counter()) <= 0:
        raise ClusterTimeoutError("There was no time left to ask the cluster.")
    return left
