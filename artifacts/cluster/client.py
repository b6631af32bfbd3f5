"""The connection to an OpenSearch cluster, its bulk requests, its errors in our words, and what an alias stands for."""

import base64
import logging
import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import local
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from opensearchpy import OpenSearch, Transport, exceptions
from opensearchpy.helpers import streaming_bulk
from opensearchpy.serializer import JSONSerializer
from pydantic import ValidationError

from lightretriever.artifacts.cluster.schema import IndexMeta
from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError, ConflictError

MIN_VERSION: Final = (2, 19)
BATCH: Final = 256  # most documents of one bulk request
_BATCH_BYTES: Final = 16 << 20
_RETRIES: Final = 8  # after 429, the first after 1 s, then twice as long each time
_MAX_WAIT_S: Final = 60
_LOAD: Final = "Look at the cluster's disk and load, and try again."
_MAX_REASON: Final = 300
_CREDENTIALS: Final = "Look at the user and password, or the API key."
_ADDRESS: Final = (
    "Write http://HOST:PORT or https://HOST:PORT. User and password have settings of their own; before the host, write "
    "both, USER:PASSWORD@, with %2F for a slash."
)
_OPENSEARCH: Final = "Give the address of an OpenSearch cluster."
_LOGS: Final = "Look at the cluster's logs."
_INDEX_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_PUSH: Final = "Write it: `lightretriever push BUNDLE --to URL --index NAME`."
_RUNNING: Final = "Look whether it runs, and at the address, its scheme (http or https) and its port."


@dataclass(frozen=True)
class ClusterAddress:
    """Where a cluster is and how to get in: addresses of its nodes, separated by commas, such as
    `https://one:9200,https://two:9200`; user and password, or an API key; and the file of the authority that signed its
    certificates, if that is no public one."""

    urls: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None


@dataclass(frozen=True)
class Cluster:
    """An open connection. Thread-safe. `name`: the addresses without credentials, for messages."""

    client: OpenSearch
    name: str
    version: tuple[int, int]
    process: int = field(default_factory=os.getpid)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.client.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise ClusterError for errors of the client, ClusterTimeoutError for an answer that did not come in time, and
        ClusterError in a forked process, which would read the answers of its parent."""
        if os.getpid() != self.process:
            raise ClusterError(
                f"The connection to {self.name} was opened in another process.", remedy="Open one in each process."
            )
        try:
            yield
        except exceptions.OpenSearchException as error:
            raise _in_our_words(self.name, error) from error


class _Json(JSONSerializer):
    """orjson: several times as fast, and it writes float32 numbers as short as they are."""

    def dumps(self, data: Any) -> Any:
        return data if isinstance(data, str) else orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY).decode()

    def loads(self, s: str) -> Any:
        try:
            return orjson.loads(s)
        except orjson.JSONDecodeError as error:
            raise exceptions.SerializationError(s, error) from error


class _Transport(Transport):
    """Asks other nodes for a while, if there are any, after one did not answer within `patience_s` seconds."""

    def __init__(self, hosts: Any, *, patience_s: float, **options: Any) -> None:
        super().__init__(hosts, **options)
        self._patience_s = patience_s
        self._asked = local()

    def get_connection(self) -> Any:
        """Choose a node."""
        self._asked.connection, self._asked.began = super().get_connection(), perf_counter()
        return self._asked.connection

    def perform_request(self, *request: Any, **options: Any) -> Any:
        """Send a request. The library leaves a late node alone only where it sends the request to another one."""
        try:
            return super().perform_request(*request, **options)
        except exceptions.ConnectionTimeout:
            if perf_counter() - self._asked.began >= self._patience_s:
                self.mark_dead(self._asked.connection)
            raise


def connect(
    address: ClusterAddress,
    *,
    timeout_s: float,
    connections: int = 4,
    retry_late: bool = False,
    patience_s: float | None = None,
) -> Cluster:
    """Connect, and check that this is OpenSearch of a version that can be used. A request that a node refuses, or can't
    be sent to it, is sent to another one; with `retry_late` one that is late as well. A node that does not answer for
    `patience_s`, by default `timeout_s`, is left alone for a minute, if there are others. `connections` are kept open
    to each node. Raises ClusterError, with what to do."""
    urls = [url.strip().rstrip("/") for url in address.urls.split(",") if url.strip()]
    if not urls:
        raise ClusterError("There is no address of a cluster.", remedy=_ADDRESS)
    name = ", ".join(_name(number, url) for number, url in enumerate(urls, 1))
    try:
        if address.ca_file is not None:
            ssl.create_default_context(cafile=address.ca_file)
    except OSError as error:
        what = f"{address.ca_file}: no certificates can be read: {error.strerror or error}."
        raise ClusterError(what, remedy="Name a PEM file.") from error
    logging.getLogger("opensearch").setLevel(logging.ERROR)  # its warnings repeat what is raised, with the stack
    client = OpenSearch(
        hosts=urls,
        headers=_credentials(address),
        serializer=_Json(),
        timeout=timeout_s,
        max_retries=max(2, len(urls)),
        retry_on_timeout=retry_late,
        transport_class=_Transport,
        patience_s=timeout_s if patience_s is None else patience_s,
        pool_maxsize=connections,
        ca_certs=None if address.ca_file is None else str(address.ca_file),
    )
    try:
        cluster = Cluster(client, name, (0, 0))
        with cluster.translated():
            info = client.info()
        return replace(cluster, version=_version(info, name))
    except BaseException:
        client.close()
        raise


def _credentials(address: ClusterAddress) -> dict[str, str]:
    if address.api_key is not None:
        return {"authorization": f"ApiKey {address.api_key}"}
    if address.user is None:
        return {}
    pair = f"{address.user}:{address.password or ''}".encode()  # the library would send Latin-1
    return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _name(number: int, url: str) -> str:
    """An address without credentials. ClusterError, which does not repeat the address, since it may have a password."""
    try:
        part = urlsplit(url)
        fits = part.scheme in ("http", "https") and bool(part.hostname) and part.port != 0
        fits = fits and not (part.query or part.fragment or "@" in part.path)
        fits = fits and part.username != "" and (part.username is None) == (part.password is None)
    except ValueError:  # of the host or the port; it repeats them
        fits = False
    if not fits:
        raise ClusterError(f"Address {number} of the cluster can't be used.", remedy=_ADDRESS)
    return f"{part.scheme}://{part.netloc.rpartition('@')[2]}{part.path}"


def _version(info: Any, name: str) -> tuple[int, int]:
    build = info.get("version") if isinstance(info, dict) else None
    if not isinstance(build, dict) or build.get("distribution") != "opensearch":
        raise ClusterError(f"{name} is not OpenSearch.", remedy=_OPENSEARCH)
    number = re.match(r"(\d+)\.(\d+)", str(build.get("number")))
    version = (int(number[1]), int(number[2])) if number else (0, 0)
    if version < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise ClusterError(f"{name} is OpenSearch {build.get('number')}; {least} is needed.", remedy="Upgrade it.")
    return version


def _in_our_words(name: str, error: exceptions.OpenSearchException) -> ClusterError:
    reason = _reason(error)
    match error:
        case exceptions.ConnectionTimeout():
            return ClusterTimeoutError(f"The cluster {name} did not answer in time.", remedy=_RUNNING)
        case exceptions.SSLError():
            remedy = "Name the file of its authority (--ca-file, opensearch_ca_file), and look at the host's name."
            return ClusterError(f"The certificate of {name} is not accepted: {reason}.", remedy=remedy)
        case exceptions.AuthenticationException():
            return ClusterError(f"The cluster {name} does not know who asks (401).", remedy=_CREDENTIALS)
        case exceptions.AuthorizationException():
            remedy = f"{_CREDENTIALS} A full disk makes indexes read-only, too."
            return ClusterError(f"The cluster {name} forbids this (403): {reason}.", remedy=remedy)
        case exceptions.SerializationError():
            return ClusterError(f"{name} is not OpenSearch: its answer is no JSON.", remedy=_OPENSEARCH)
        case exceptions.TransportError(status_code="N/A"):
            return ClusterError(f"The cluster {name} can't be reached: {reason}.", remedy=_RUNNING)
        case exceptions.TransportError():
            return ClusterError(f"The cluster {name} answered {error.status_code}: {reason}.", remedy=_LOGS)
    return ClusterError(f"The cluster {name}: {reason}.", remedy=_LOGS)


def _reason(error: Exception) -> str:
    """Return the reason that the cluster names, on one line."""
    info = error.info if isinstance(error, exceptions.TransportError) else None
    cause = info.get("error") if isinstance(info, dict) else None
    if isinstance(cause, dict):
        cause = ((cause.get("root_cause") or [cause])[0] or cause).get("reason") or cause.get("reason")
    text = str(cause or (error.error if isinstance(error, exceptions.TransportError) else error))
    return " ".join(text.split())[:_MAX_REASON].rstrip(".")


def send(
    cluster: Cluster, index: str, actions: Iterable[dict[str, Any]], max_retries: int = _RETRIES, **options: Any
) -> Iterator[dict[str, Any]]:
    """Send actions, again after 429, and give what became of each. `options` are those of each request. Raises
    ClusterError."""
    with cluster.translated():
        for _, item in streaming_bulk(
            cluster.client,
            ({"_index": index, **action} for action in actions),
            chunk_size=BATCH,
            max_chunk_bytes=_BATCH_BYTES,
            max_retries=max_retries,
            initial_backoff=1,
            max_backoff=_MAX_WAIT_S,
            raise_on_error=False,
            **options,
        ):
            yield next(iter(item.values()))


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


def check_name(alias: str) -> None:
    """Raise ClusterError for what can't be the name of an index."""
    if not _INDEX_NAME.fullmatch(alias) or alias.startswith("."):
        raise ClusterError(
            f"{alias!r:.100} is no name of an index.",
            remedy="Use at most 200 of: lowercase letters, digits, dots, dashes, underscores; a letter or digit first.",
        )


def indexes_of(cluster: Cluster, alias: str) -> list[str]:
    """Name the indexes that an alias stands for. ClusterError if it is the name of an index itself."""
    check_name(alias)
    with cluster.translated():
        try:
            indexes = cluster.client.indices.get_alias(name=alias)
        except exceptions.NotFoundError:
            indexes = {}
        taken = not indexes and cluster.client.indices.exists(index=alias)
    if taken:
        remedy = "Choose another name, or remove that index."
        raise ClusterError(f"{alias} is an index of {cluster.name}, not an alias of one.", remedy=remedy)
    return sorted(indexes)


def only_index(cluster: Cluster, alias: str) -> str:
    """Name the one index that an alias stands for. ClusterError if there is none or more."""
    indexes = indexes_of(cluster, alias)
    if len(indexes) != 1:
        what = f"the alias of {len(indexes)} indexes ({', '.join(indexes)})" if indexes else "no index"
        raise ClusterError(f"{alias} is {what} on {cluster.name}; it must be the alias of one.", remedy=_PUSH)
    return indexes[0]


def read_meta(cluster: Cluster, index: str) -> IndexMeta:
    """Read what an index was written from. ClusterError if it is not one of ours, or of another format."""
    return read_index(cluster, index)[0]


def read_index(cluster: Cluster, index: str, **limit: Any) -> tuple[IndexMeta, str]:
    """Read what an index was written from, and its UUID, which no other index of its name has had, such as one restored
    from a snapshot. `limit` may be a `request_timeout` in seconds. ClusterError as in `read_meta`."""
    with cluster.translated():
        description: dict[str, Any] = cluster.client.indices.get(index=index, **limit)[index]
    meta = description["mappings"].get("_meta")
    try:
        return IndexMeta.model_validate(meta), description["settings"]["index"]["uuid"]
    except ValidationError as error:
        what = "has no _meta of lightretriever" if meta is None else "is of another format"
        raise ClusterError(f"The index {index} of {cluster.name} {what}.", remedy=_PUSH) from error


def switch(cluster: Cluster, alias: str, index: str) -> list[str]:
    """Make an alias stand for this index alone, in one step, and name those that it stood for before."""
    before = [name for name in indexes_of(cluster, alias) if name != index]
    actions: list[dict[str, Any]] = [{"remove": {"index": name, "alias": alias}} for name in before]
    with cluster.translated():
        cluster.client.indices.update_aliases(body={"actions": [*actions, {"add": {"index": index, "alias": alias}}]})
    return before
