"""Single documents written to an index, and deleted from it, while services search it.

A document is always written whole, over the version that was read, so a change of its fields can't lose its vector or
its impacts, nor what another writer has written meanwhile.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from time import perf_counter
from typing import Any, Final

from lightretriever.artifacts.cluster.client import BATCH, Cluster, only_index, read_index, refusal, send
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
)

_HASHES: Final = ["ordinal", "hashes"]  # the fields of a document that tell whether it changed
_ATTEMPTS: Final = 5  # to write over a version that others change meanwhile


@dataclass(frozen=True)
class Stored(StoredDocument):
    """A document as an index has it: also its `_source`, or the part of it that was asked for, in which `raw` may be
    missing, and what tells its version there."""

    source: Mapping[str, Any]
    seq_no: int
    primary_term: int

    def equals(self, document: Document) -> bool:
        """True if it is this document, byte for byte."""
        return bool(self.source["hashes"] == document_hashes(document.full_text, document.raw))

    def has_text_of(self, document: Document) -> bool:
        """True if title and text are those of a document."""
        return bool(self.source["hashes"][0] == document_hashes(document.full_text, document.raw)[0])


class LiveIndex(LiveDocuments):
    """The index that an alias stands for, to be written to. Thread-safe. Searches see a change within a second.
    ClusterError if the cluster does not take a change, or if the alias was given to another index meanwhile;
    ClusterTimeoutError leaves open whether the change was made."""

    def __init__(self, cluster: Cluster, alias: str, index: str, meta: IndexMeta) -> None:
        self.cluster = cluster
        self.index = index
        self.meta = meta
        self.most_impact = MAX_IMPACT if meta.large else MAX_PLAIN_IMPACT
        self._alias = alias

    def get(self, document_id: str, deadline: float) -> Stored | None:
        """Read a document as it is now, whether searches see it or not; None if there is none with this id."""
        return self._read([document_id], self._present(deadline)[1], deadline, [document_id])[0]

    def seen(self, ids: Sequence[str], deadline: float = inf) -> list[StoredDocument | None]:
        """Return documents with their versions and digests; None for an id that no document has."""
        return [*self._read(ids, self._present(deadline)[1], deadline)]

    def write(self, changes: Sequence[Change], deadline: float, *, wait: bool = False) -> list[Result]:
        """Make changes in their order, and return the result of each. With `wait`, searches see them then."""
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

    def refresh(self) -> None:
        """Make what was written visible to searches."""
        with self.cluster.translated():
            self.cluster.client.indices.refresh(index=self.index)
        self.check_alias()

    def _make(
        self, changes: Sequence[Change], run: Sequence[int], results: list[Result], deadline: float, *, wait: bool
    ) -> list[int]:
        """Make the changes at the indexes `run`, of different documents, and set their results. Return the indexes of
        those that lost a race and may be repeated."""
        actions, places, again = list[dict[str, Any]](), list[int](), list[int]()
        meta, uuid = self._present(deadline)  # may be another one now, under the same name
        own = [changes[index] for index in run]
        kept = {change.id for change in own if change.document is not None and self._incomplete(change)}
        stored = self._read([change.id for change in own], uuid, deadline, kept)
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
        options = _limit(deadline) | {"refresh": "wait_for" if wait else "false"}
        if deadline < inf:  # one that has time is sent again where the cluster is busy
            options |= {"max_retries": 0, "timeout": f"{max(1, round(options['request_timeout'] * 1e3))}ms"}
        items = send(self.cluster, self.index, actions, **options)
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

    def _incomplete(self, change: Change) -> bool:
        """True if a change lacks impacts, or a vector that the index has."""
        return change.impacts is None or (change.vector is None and self.meta.dimension is not None)

    def _action(self, change: Change, stored: Stored | None) -> dict[str, Any] | None:
        """Return the action of a bulk request, None where there is nothing to delete: a document whole, with the vector
        or the rank features of the one that is there if there are no new ones. ConflictError; UnencodedError if that
        one has another text."""
        check_version(change, stored)
        over = {} if stored is None else {"if_seq_no": stored.seq_no, "if_primary_term": stored.primary_term}
        if (document := change.document) is None:
            versioned = over if change.version is not None else {}
            return None if stored is None else {"_op_type": "delete", "_id": change.id, **versioned}
        if self._incomplete(change) and (stored is None or not stored.has_text_of(document)):
            raise unencoded(change, new=stored is None, dense=self.meta.dimension is not None)
        new = {"ordinal": live_ordinal(document.id)}
        old: Mapping[str, Any] = new if stored is None else stored.source
        vector = old.get("vector") if change.vector is None else change.vector
        impacts = old["impacts"] if change.impacts is None else features(change.impacts)
        body = document_body(old["ordinal"], document.raw, vector, impacts, self.meta.fields)
        return {"_op_type": "create" if stored is None else "index", "_id": change.id, **over, "_source": body}

    def _read(self, ids: Sequence[str], uuid: str, deadline: float, whole: Collection[str] = ()) -> list[Stored | None]:
        """Read documents as they are now, those named in `whole` with all fields; None for an id that no document has.
        `uuid` is that of the index."""
        asked = [{"_id": name, "_source": True if name in whole else _HASHES} for name in ids]
        with self.cluster.translated():
            answers = self.cluster.client.mget(index=self.index, body={"docs": asked}, **_limit(deadline))["docs"]
        for answer in answers:
            if "error" in answer:
                reason = f"{answer['error'].get('type')}: {answer['error'].get('reason')}"
                what = f"{self.cluster.name} can't read document {answer['_id']!r}: {reason:.300}."
                raise ClusterError(what, remedy="Look at the cluster's logs.")
        return [_stored(answer, answer["_source"], uuid) if answer["found"] else None for answer in answers]

    def _present(self, deadline: float) -> tuple[IndexMeta, str]:
        """Read what the index that has this name now was written from, and its UUID."""
        return read_index(self.cluster, self.index, **_limit(deadline))

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
    """Return the indexes of changes in runs of up to `BATCH`, in order, no document twice."""
    run, ids = list[int](), set[str]()
    for index, change in enumerate(changes):
        if change.id in ids or len(run) == BATCH:
            yield run
            run, ids = [], set()
        run.append(index)
        ids.add(change.id)
    if run:
        yield run


def _limit(deadline: float) -> dict[str, Any]:
    """Return the option of a request that ends by `deadline`. ClusterTimeoutError if there is no time left."""
    if deadline == inf:
        return {}
    if (left := deadline - perf_counter()) <= 0:
        raise ClusterTimeoutError("There was no time left to ask the cluster.")
    return {"request_timeout": left}
