"""Single documents written to an index, and deleted from it, while services search it.

A document is always written whole, over the version that was read, so a change of its fields can't lose its vector or
its impacts, nor what another writer has written meanwhile.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final

from lightretriever.artifacts.cluster.aliases import only_index, read_meta
from lightretriever.artifacts.cluster.bodies import Stored, body_of, most_impact
from lightretriever.artifacts.cluster.bulk import refusal
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.schema import IndexMeta
from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError, ConflictError, DocumentError
from lightretriever.artifacts.live.documents import Change, Result, Written, check_version

__all__ = ["HASHES", "LiveIndex", "put_action"]

HASHES: Final = ("ordinal", "hashes")
"""The fields of a document that tell whether it changed."""

_ATTEMPTS: Final = 5  # to write over a version that others change meanwhile


class LiveIndex:
    """The index that an alias stands for, to be written to. Thread-safe.

    `wait` makes a call return only when searches see the change, which is within a second without it. Calls end by
    the `perf_counter` time `until`. ClusterError if the cluster does not take a change, or if the alias was given to
    another index meanwhile; ClusterTimeoutError leaves open whether the change was made.
    """

    def __init__(self, cluster: Cluster, alias: str, index: str, meta: IndexMeta) -> None:
        self.cluster = cluster
        self.index = index
        self.meta = meta
        self.most_impact = most_impact(meta)
        self._alias = alias

    @property
    def problem(self) -> str | None:
        """Why searches can't see changes any more: they can, if they reach the cluster."""
        return None

    @property
    def written(self) -> int:
        """Number of documents written beside the bundle that take memory here: none."""
        return 0

    @property
    def warning(self) -> str | None:
        """None: an index on a cluster has no limit to warn of."""
        return None

    def get(self, document_id: str, until: float) -> Stored | None:
        """Read a document as it is now, whether searches see it or not; None if there is none with this id."""
        return self.read([document_id], until)[0]

    def write(self, changes: Sequence[Change], until: float, *, wait: bool = False) -> list[Result]:
        """Make changes one after the other, and give what became of each."""
        results: list[Result] = []
        for change in changes:
            try:
                make = self._delete if change.document is None else self._put
                results.append(make(change, until, wait=wait))
            except (DocumentError, ConflictError) as error:
                results.append(error)
        return results

    def _put(self, change: Change, until: float, *, wait: bool) -> Written:
        stored = self._expected(change, until)
        for _ in range(_ATTEMPTS):
            body = body_of(change, stored, self.meta)
            try:
                done = self._write([put_action(change.id, stored), body], until, wait=wait)
            except ConflictError:
                if change.version is not None:
                    raise
                stored = self.get(change.id, until)
                continue
            return Written(stored is None, self._stored(done, {}).version)
        raise ConflictError(f"Document {change.id!r} was changed by others {_ATTEMPTS} times.", remedy="Try again.")

    def _delete(self, change: Change, until: float, *, wait: bool) -> Written | None:
        stored = self._expected(change, until)
        if stored is None:
            return None
        over = {} if change.version is None else _over(stored)
        done = self._write([{"delete": {"_id": change.id} | over}], until, wait=wait)
        return Written(False, self._stored(done, {}).version)

    def read(
        self, ids: Sequence[str], until: float | None = None, fields: Sequence[str] | None = None
    ) -> list[Stored | None]:
        """Read documents as they are now, all of each or only some `fields`; None for an id that no document has."""
        params: dict[str, Any] = {} if fields is None else {"_source_includes": ",".join(fields)}
        if until is not None:
            params |= {"request_timeout": _left(until)}
        with self.cluster.translated():
            found = self.cluster.client.mget(index=self.index, body={"ids": list(ids)}, params=params)["docs"]
        for one in found:
            if "error" in one:
                reason = f"{one['error'].get('type')}: {one['error'].get('reason')}"
                raise ClusterError(f"{self.cluster.name} can't read document {one['_id']!r}: {reason:.300}.")
        return [self._stored(one, one["_source"]) if one["found"] else None for one in found]

    def mark(self) -> None:
        """Note in the index that it no longer has the documents of its bundle alone. To be called before each write: an
        index can be removed, and pushed again under the same name."""
        meta = read_meta(self.cluster, self.index)
        if not meta.live:
            body = {"_meta": meta.model_copy(update={"live": True}).model_dump()}
            with self.cluster.translated():
                self.cluster.client.indices.put_mapping(index=self.index, body=body)

    def check_alias(self) -> None:
        """Raise ClusterError if the alias stands for another index now, which lacks what was just written."""
        if (now := only_index(self.cluster, self._alias)) != self.index:
            raise ClusterError(
                f"{self._alias} became {now} while {self.index} was written to.", remedy="Repeat the change."
            )

    def _write(self, lines: list[dict[str, Any]], until: float, *, wait: bool) -> dict[str, Any]:
        """Write one document; in a bulk request, because an id may be no part of a path."""
        self.mark()
        left = _left(until)
        params = {"request_timeout": left, "timeout": f"{max(1, round(left * 1e3))}ms"}
        with self.cluster.translated():
            done = self.cluster.client.bulk(
                index=self.index, body=lines, params=params | ({"refresh": "wait_for"} if wait else {})
            )
        item: dict[str, Any] = next(iter(done["items"][0].values()))
        if (error := refusal(self.cluster, item)) is not None:
            raise error
        self.check_alias()
        return item

    def _stored(self, found: Mapping[str, Any], source: Mapping[str, Any]) -> Stored:
        return Stored(source, self.index, found["_seq_no"], found["_primary_term"])

    def _expected(self, change: Change, until: float) -> Stored | None:
        stored = self.get(change.id, until)
        check_version(change, stored)
        return stored


def put_action(document_id: str, stored: Stored | None) -> dict[str, Any]:
    """Give the action of a bulk request that writes a document over the one that is there, if there is one."""
    if stored is None:
        return {"create": {"_id": document_id}}
    return {"index": {"_id": document_id} | _over(stored)}


def _over(stored: Stored) -> dict[str, Any]:
    return {"if_seq_no": stored.seq_no, "if_primary_term": stored.primary_term}


def _left(until: float) -> float:
    if (left := until - perf_counter()) <= 0:
        raise ClusterTimeoutError("There was no time left to ask the cluster.")
    return left
