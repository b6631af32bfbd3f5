"""The service's settings: one table of name, default and help, with the unit in the name.

Sources, by precedence: the environment (`LIGHTRETRIEVER_` + the name in upper case), a YAML file (`--config`, or the
path in `LIGHTRETRIEVER_CONFIG`), the default below.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from lightretriever.artifacts.files.reading import read_yaml
from lightretriever.service.cgroup import processors
from lightretriever.service.errors import SettingsError

ENV_PREFIX = "LIGHTRETRIEVER_"
CONFIG_VARIABLE = "LIGHTRETRIEVER_CONFIG"
_CANDIDATES: Final = 100
_MAX_THREADS: Final = 4  # more would contend for the GIL
_THREADS_ON_CLUSTER: Final = 16  # they wait most of the time

_OF_CLIENTS: Final = {f"{ENV_PREFIX}URL", f"{ENV_PREFIX}API_KEY"}
"""What `search` and `mcp` read, which may run in the same environment."""

_MAY_BE_EMPTY: Final = f"{ENV_PREFIX}TRUSTED_PROXIES"
"""Empty, it trusts no proxy, which the default does."""

# Kubernetes sets such variables in every container, with the addresses of the services around it.
_INJECTED = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def _checked_networks(proxies: str) -> str:
    for network in filter(None, map(str.strip, "" if proxies.strip() == "*" else proxies.split(","))):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ValueError(f"{error}; write addresses or networks such as 10.0.0.0/8, or * for all") from None
    return proxies


class Settings(BaseSettings):
    """Settings of one service process."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_batch: ClassVar[int] = 64
    """Most searches in one batch request."""
    max_batch_hits: ClassVar[int] = 10_000
    """Most hits in one batch request: the sum of its searches' `k`."""
    max_explained: ClassVar[int] = 50_000
    """Most `k` times different terms and tokens of a request with `explain`; a batch's searches share it equally."""
    warm_up_s: ClassVar[float] = 1.0
    encode_timeout_s: ClassVar[float] = 30.0
    """Time beyond `deadline_ms` for a document that the model has to encode, waiting included."""
    shutdown_grace_s: ClassVar[int] = 10
    """Time for requests in flight to finish after SIGTERM or SIGINT."""

    deadline_ms: float = Field(default=1000.0, gt=0, le=600_000)
    """Time limit of a request. A request may ask for less, not for more."""
    max_candidates: int = Field(default=1000, ge=1, le=100_000)
    """Most candidates of a request. It bounds offset + k of a query, and k without one."""
    max_query_chars: int = Field(default=10_000, ge=1)
    """Longest query or text, in characters."""
    max_body_bytes: int = Field(default=1_048_576, ge=1)
    """Largest request body, in bytes."""
    search_threads: int = Field(default=0, ge=0, le=1024)
    """Request threads of each process, and as many for searches in Faiss. 0: processors divided by processes, 1 to 4;
    at least 2 for one process, with `rerank_url` and with `live`; on a cluster 16."""
    max_waiting: int = Field(default=128, ge=0, le=1_000_000)
    """Requests that may wait; more are refused."""
    warm_up_queries: int = Field(default=2000, ge=1)
    """Most searches of the warm-up, which lets the JVM compile its hot code."""
    keep_alive_s: int = Field(default=75, ge=1, le=86_400)
    """Time after which the service closes a connection on which no whole head of a request has come. A proxy in front
    must close idle connections earlier."""
    watch_s: float = Field(default=5.0, ge=0, le=86_400)
    """Time between two checks of the bundle's folder for a new version. 0: no checks."""
    api_keys_file: Path | None = None
    """YAML or JSON file of API keys. Without it, searching is open to all, and admin routes are off."""
    trusted_proxies: Annotated[str, AfterValidator(_checked_networks)] = "127.0.0.1"
    """Comma-separated addresses or networks whose `X-Forwarded-For` names the client. `*`: all."""
    # A password, which the pattern refuses, is not shown.
    rerank_url: str | None = Field(default=None, repr=False, pattern=r"^https?://[^/@\s]+(/\S*)?$")
    """Address of a reranking model with the API of text-embeddings-inference, such as `http://reranker:8080/rerank`, or
    with `rerank_model` that of Cohere. It is a model in the query path."""
    rerank_model: str | None = Field(default=None, min_length=1)
    """Name of the reranking model, for the API of Cohere, Jina and vLLM."""
    rerank_api_key: str | None = Field(default=None, repr=False)
    """Bearer token for the reranking model."""
    rerank_top: int = Field(default=20, ge=1, le=1000)
    """Candidates that the reranking model reads."""
    rerank_characters: int = Field(default=10_000, ge=1, le=10_000)
    """Characters of each candidate that the reranking model reads."""
    tls_certificate_file: Path | None = None
    """PEM file of the server's certificate and of those that sign it. With it, the service speaks only HTTPS."""
    tls_key_file: Path | None = None
    """PEM file of the certificate's private key; without it, the key is in the same file."""
    opensearch_url: str | None = Field(default=None, repr=False)  # it may hold a password
    """Addresses of an OpenSearch cluster's nodes, separated by commas, such as `https://one:9200,https://two:9200`.
    With them, the legs are searched there (extra `cluster`)."""
    opensearch_index: str | None = None
    """The alias of the index, as given to `push`."""
    opensearch_user: str | None = None
    """User for the cluster, if it asks for one."""
    opensearch_password: str | None = Field(default=None, repr=False)
    """The user's password."""
    opensearch_api_key: str | None = Field(default=None, repr=False)
    """API key, in place of a user."""
    opensearch_ca_file: Path | None = None
    """PEM file of the authority that signed the cluster's certificates."""
    live: Path | None = None
    """Folder of the journal of documents that are written beside the bundle; see docs/howto/live-documents.md. All
    processes of a service share it."""
    recipe: Path | None = None
    """Recipe of the bundle, whose model encodes documents that are written as fields alone. Needs the extra `pipeline`;
    see docs/howto/live-documents.md."""
    rules: Path | None = None
    """YAML or JSON file of synonyms, and of documents that are pinned or hidden for a query; see docs/howto/rules.md.
    It is read again when it changes."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log. `info` has one line per request, without the query."""

    @cached_property
    def candidates(self) -> int:
        """Candidates per leg if a request gives no number."""
        return min(_CANDIDATES, self.max_candidates)

    @property
    def backend(self) -> Literal["local", "opensearch"]:
        """Where the legs are searched: in the bundle's indexes, or on a cluster if its address is given."""
        return "local" if self.opensearch_url is None else "opensearch"

    def threads(self) -> int:
        """Return the number of request threads: `search_threads`, or as many as suit a process that serves alone."""
        return self.for_processes(1).search_threads

    def for_processes(self, processes: int) -> "Settings":
        """Return the settings of one of several processes, in which `search_threads` is never 0."""
        if self.search_threads:
            return self
        waits = processes == 1 or self.rerank_url is not None or self.live is not None
        fewest = 2 if waits else 1  # beside a thread that waits, another one searches
        threads = max(fewest, min(processors() // processes, _MAX_THREADS))
        if self.backend == "opensearch":
            threads = _THREADS_ON_CLUSTER
        return self.model_copy(update={"search_threads": threads})


def load_settings(config: Path | None = None, arguments: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; `arguments` that are not None come first. SettingsError names setting, value and remedy."""
    _check_environment()
    file = config or os.environ.get(CONFIG_VARIABLE)
    values = _read_yaml(Path(file)) if file else {}
    values |= EnvSettingsSource(Settings)()
    values |= {name: value for name, value in (arguments or {}).items() if value is not None}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise _unknown(f"There is no setting {name!r}.") from error
        field = Settings.model_fields[str(first["loc"][0])]
        value = repr(first["input"]) if field.repr else "what it is"
        raise SettingsError(
            f"Setting {name!r} can't be {value}: {first['msg'].removeprefix('Value error, ')}.",
            remedy=f"Correct it in the environment ({ENV_PREFIX}{name.upper()}) or the file.",
        ) from error
    if (settings.opensearch_url is None) != (settings.opensearch_index is None):
        raise SettingsError(
            "Of the settings 'opensearch_url' and 'opensearch_index', one is missing.",
            remedy="Give both, --opensearch-url URL --index NAME, or neither.",
        )
    if settings.live is not None and settings.backend != "local":
        raise SettingsError(
            f"Setting 'live' is '{settings.live}', but 'opensearch_url' names a cluster, which has its own documents.",
            remedy="Leave live out: documents on a cluster can be written anyway.",
        )
    if settings.recipe is not None and settings.live is None and settings.backend != "opensearch":
        raise SettingsError(
            f"Setting 'recipe' is '{settings.recipe}', but the documents don't change without 'live' or "
            "'opensearch_url'.",
            remedy="Leave recipe out, or give live a folder or opensearch_url a cluster.",
        )
    return settings


def _check_environment() -> None:
    names = {CONFIG_VARIABLE, *(ENV_PREFIX + name.upper() for name in Settings.model_fields)}
    for variable in os.environ:
        name = variable.upper()
        if name in _OF_CLIENTS:
            continue
        if name.startswith(ENV_PREFIX) and name not in names and not _INJECTED.fullmatch(name, len(ENV_PREFIX)):
            raise _unknown(f"The environment has {variable}, but there is no such setting.")
        if name in names and not os.environ[variable].strip() and name != _MAY_BE_EMPTY:
            raise SettingsError(f"{variable} in the environment is empty.", remedy="Unset it, or give it a value.")


def _unknown(message: str) -> SettingsError:
    return SettingsError(message, remedy=f"The settings are: {', '.join(Settings.model_fields)}.")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path)
    except OSError as error:
        raise SettingsError(f"{path}: the settings can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsError(f"{path}: not YAML: {error}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected lines of `name: value`, found a {type(content).__name__}.")
    return {str(name): value for name, value in content.items()}
