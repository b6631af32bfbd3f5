"""API keys: a file of names, hashes and scopes. The keys themselves are not stored."""

import hashlib
import hmac
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lightretriever.artifacts.files.reading import parse_yaml
from lightretriever.service.errors import ForbiddenError, SettingsError, UnauthorizedError
from lightretriever.service.execution.watching import WatchedFile

KeyScope = Literal["search", "admin"]
CollectionName = Annotated[str, Field(pattern="^[A-Za-z0-9._-]{1,64}$")]

_REMEDY: Final = "Write a list of entries such as {name: web, sha256: …, scopes: [search]}; docs/service.md makes one."


class KeyEntry(BaseModel):
    """A key's entry in the file: `sha256` is that of the key, as hex."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern="^[A-Za-z0-9._-]{1,64}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    scopes: Annotated[list[KeyScope], Field(min_length=1)]
    collections: Annotated[list[CollectionName] | None, Field(min_length=1)] = None
    """Collections that the key is for; None: all."""


_ENTRIES: Final = TypeAdapter(list[KeyEntry])


class ApiKeys(WatchedFile[list[KeyEntry]]):
    """The keys in a file."""

    def __init__(self, path: Path) -> None:
        """SettingsError if the file can't be used."""
        super().__init__("API keys", [path], partial(_parse, path))

    def name(self, authorization: str, scope: KeyScope, collection: str) -> str:
        """Return the name of the key in the header `Authorization` of a request to a collection. UnauthorizedError,
        ForbiddenError. The key is compared with every known key, each in constant time."""
        kind, _, key = authorization.partition(" ")
        if kind.lower() != "bearer" or not key:
            raise UnauthorizedError("Send your API key in the header: Authorization: Bearer KEY.")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).hexdigest()
        known = [entry for entry in self.value if hmac.compare_digest(entry.sha256, digest)]
        if not known:
            raise UnauthorizedError("This API key is not known.")
        api_key = known[0]
        if scope not in api_key.scopes:
            scopes = ", ".join(api_key.scopes)
            raise ForbiddenError(f"The API key {api_key.name!r} has no scope {scope!r}; it has: {scopes}.")
        if api_key.collections is not None and collection not in api_key.collections:
            names = ", ".join(api_key.collections)
            raise ForbiddenError(f"The API key {api_key.name!r} is not for {collection!r}, but for: {names}.")
        return api_key.name


def _parse(path: Path, content: bytes) -> list[KeyEntry]:
    """Parse keys, YAML or JSON. SettingsError, which never repeats a value from the file."""
    try:
        values = parse_yaml(content)
    except ValueError:
        raise SettingsError(f"{path}: not YAML, or nested too deep.", remedy=_REMEDY) from None
    try:
        entries = _ENTRIES.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        # pydantic's message would log the value, which may be a key written in place of its hash.
        reason = "unknown" if first["type"] == "extra_forbidden" else f"missing or not right ({first['type']})"
        raise SettingsError(f"{path}: {field} is {reason}.", remedy=_REMEDY) from None
    for name in ("name", "sha256"):
        if len({getattr(entry, name) for entry in entries}) < len(entries):
            raise SettingsError(f"{path}: two entries have the same {name}.", remedy=_REMEDY)
    if not entries:
        raise SettingsError(f"{path}: there is no key in the file.", remedy=_REMEDY)
    return entries
