"""The connection to an OpenSearch cluster, its bulk requests, and its errors in our words."""

import base64
import logging
import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from opensearchpy import OpenSearch, Transport, exceptions
from opensearchpy.helpers import streaming_bulk
from opensearchpy.serializer import JSONSerializer

from lightretriever.artifacts.errors import ClusterError, ClusterTimeoutError, ConflictError

MIN_VERSION: Final = (2, 19)
BATCH: Final = 256
"""Most documents of one bulk request."""

_BATCH_BYTES: Final = 16 << 20
_RETRIES: Final = 8  # after 429, the first after 1 s, then twice as long each time
_MAX_WAIT_S: Final = 60
_LOAD: Final = "Look at the cluster's disk and load, and try again."
_MAX_REASON: Final = 300
_CREDENTIALS: Final = "Look at the user and password, or the API key."
_ADDRESS: Final = (
    "Write http://HOST:PORT or https://HOST:PORT. User and password have settings of their own; before the host, write "
    "USER:PASSWORD@, with %2F for a slash."
)
_LOGS: Final = "Look at the cluster's logs."
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
        with _translated(self.name):
            yield


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
    """Connect, and check that this is OpenSearch of a version that can be used.

    A request that a node refuses, or can't be sent to it, is sent to another one; with `retry_late` one that is late as
    well. A node that does not answer for `patience_s`, by default `timeout_s`, is left alone for a minute, if there are
    others. `connections` are kept open to each node. Raises ClusterError, with what to do.
    """
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
        with _translated(name):
            info = client.info()
        return Cluster(client, name, _version(info, name))
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
    except ValueError:  # of the host or the port; it repeats them
        fits = False
    if not fits:
        raise ClusterError(f"Address {number} of the cluster can't be used.", remedy=_ADDRESS)
    if (part.username is None) != (part.password is None) or part.username == "":
        raise ClusterError(f"Address {number} of the cluster has a user without a password.", remedy=_ADDRESS)
    return f"{part.scheme}://{part.netloc.rpartition('@')[2]}{part.path}"


def _version(info: Any, name: str) -> tuple[int, int]:
    build = info.get("version") if isinstance(info, dict) else None
    if not isinstance(build, dict) or build.get("distribution") != "opensearch":
        raise ClusterError(f"{name} is not OpenSearch.", remedy="Give the address of an OpenSearch cluster.")
    number = re.match(r"(\d+)\.(\d+)", str(build.get("number")))
    version = (int(number[1]), int(number[2])) if number else (0, 0)
    if version < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise ClusterError(f"{name} is OpenSearch {build.get('number')}; {least} is needed.", remedy="Upgrade it.")
    return version


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except exceptions.ConnectionTimeout as error:
        raise ClusterTimeoutError(f"The cluster {name} did not answer in time.", remedy=_RUNNING) from error
    except exceptions.SSLError as error:
        remedy = "Name the file of its authority (--ca-file, opensearch_ca_file), and look at the host's name."
        raise ClusterError(f"The certificate of {name} is not accepted: {_reason(error)}.", remedy=remedy) from error
    except exceptions.AuthenticationException as error:
        raise ClusterError(f"The cluster {name} does not know who asks (401).", remedy=_CREDENTIALS) from error
    except exceptions.AuthorizationException as error:
        remedy = f"{_CREDENTIALS} A full disk makes indexes read-only, too."
        raise ClusterError(f"The cluster {name} forbids this (403): {_reason(error)}.", remedy=remedy) from error
    except exceptions.SerializationError as error:
        raise ClusterError(
            f"{name} is not OpenSearch: its answer is no JSON.", remedy="Give the address of an OpenSearch cluster."
        ) from error
    except exceptions.TransportError as error:
        if error.status_code == "N/A":
            raise ClusterError(f"The cluster {name} can't be reached: {_reason(error)}.", remedy=_RUNNING) from error
        what = f"The cluster {name} answered {error.status_code}: {_reason(error)}."
        raise ClusterError(what, remedy=_LOGS) from error
    except exceptions.OpenSearchException as error:
        raise ClusterError(f"The cluster {name}: {_reason(error)}.", remedy=_LOGS) from error


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
