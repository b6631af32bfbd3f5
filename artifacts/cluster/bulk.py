"""Documents written to an index, or deleted from it, in bulk requests, and what became of each."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opensearchpy.helpers import streaming_bulk

from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.errors import ClusterError, ConflictError

__all__ = ["BATCH", "refusal", "send"]

BATCH: Final = 256
"""Most documents of one request."""

_BATCH_BYTES: Final = 16 << 20
_RETRIES: Final = 8  # after 429, the first after 1 s, then twice as long each time
_MAX_WAIT_S: Final = 60
_LOAD: Final = "Look at the cluster's disk and load, and try again."


def send(
    cluster: Cluster, index: str, actions: Iterable[dict[str, Any]], max_retries: int = _RETRIES, **options: Any
) -> Iterator[dict[str, Any]]:
    """Send actions, again after 429, and give what became of each. `options` are those of each request. Raises
    ClusterError."""
    with cluster.translated():
        for _, found in streaming_bulk(
            cluster.client,
            ({"_index": index, **one} for one in actions),
            chunk_size=BATCH,
            max_chunk_bytes=_BATCH_BYTES,
            max_retries=max_retries,
            initial_backoff=1,
            max_backoff=_MAX_WAIT_S,
            raise_on_error=False,
            **options,
        ):
            yield next(iter(found.values()))


def refusal(cluster: Cluster, item: Mapping[str, Any]) -> ClusterError | ConflictError | None:
    """Return the error of what became of one action, None if it has none."""
    cause = item.get("error")
    if cause is None:
        return None
    reason = cause.get("reason") if isinstance(cause, dict) else cause
    if item.get("status") == 409:
        return ConflictError(f"Document {item.get('_id')!r} was changed meanwhile: {reason!s:.200}.")
    full = isinstance(cause, dict) and cause.get("type") == "cluster_block_exception"
    return ClusterError(
        f"{cluster.name} refused document {item.get('_id')!r} with status {item.get('status')}: {reason!s:.300}.",
        remedy="The index is read-only. A full disk makes it so: free space." if full else _LOAD,
    )
