"""Who may ask."""

import ipaddress
from typing import Any

from lightretriever.service.errors import NotFoundError
from lightretriever.service.http.api_keys import ApiKeys, KeyScope
from lightretriever.service.settings import Settings

__all__ = ["Access", "client_address"]


class Access:
    """Checks the API key of each request."""

    def __init__(self, settings: Settings) -> None:
        """SettingsError if the file of keys can't be used."""
        self.keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file)

    def enter(self, scope: KeyScope, authorization: str, about: dict[str, Any], collection: str) -> None:
        """Let a request to a collection pass, with its header `Authorization`, "" if it has none. UnauthorizedError,
        ForbiddenError. `about`, which is logged, gets the key's name.

        Without keys, searching is open to all and the scope `admin` gives NotFoundError.
        """
        if self.keys is not None:
            about["key"] = self.keys.name(authorization, scope, collection)
        elif scope == "admin":
            raise NotFoundError("The admin routes are off without API keys. Name their file, 'api_keys_file'.")


def client_address(host: str | None) -> str:
    """The address of a client, as a proxy or the connection has it: of an IPv4-mapped IPv6 address the IPv4 address,
    and `unknown` for what is no address."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return "unknown"
    return str(getattr(address, "ipv4_mapped", None) or address)
