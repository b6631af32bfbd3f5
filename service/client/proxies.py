"""The proxy that the environment names for an address: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, but for `NO_PROXY`."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Self
from urllib.request import getproxies, proxy_bypass

import httpx2

from lightretriever.service.client.errors import ClientError

__all__ = ["EnvironmentProxy"]

_SOCKS: Final = ("socks5", "socks5h")


@dataclass(frozen=True)
class EnvironmentProxy:
    """A proxy, as httpx2 takes it, and the `variable` that names it."""

    proxy: httpx2.Proxy
    variable: str

    @classmethod
    def of(cls, address: str) -> Self | None:
        """Give the proxy on the way to an address; None: there is none. ClientError if it can't be used."""
        url, named = httpx2.URL(address), getproxies()
        scheme = url.scheme if named.get(url.scheme) else "all"
        given = named.get(scheme)
        if not given or proxy_bypass(f"{url.host}:{url.port}" if url.port else url.host):
            return None
        known = (name for name in os.environ if name.lower() == f"{scheme}_proxy" and os.environ[name])
        variable = min(known, key=str.isupper, default=f"{scheme.upper()}_PROXY")  # lower case counts first
        remedy = f"Correct it, or name the host in NO_PROXY: NO_PROXY={url.host}."
        try:
            proxy = httpx2.Proxy(given if "://" in given else f"http://{given}")
        except (ValueError, httpx2.InvalidURL) as error:
            raise ClientError(f"{variable} names no proxy that can be used.", remedy=remedy) from error
        found = cls(proxy, variable)
        if not proxy.url.host:
            raise ClientError(f"{variable} names no proxy that can be used: it has no host.", remedy=remedy)
        if proxy.url.scheme in _SOCKS and find_spec("socksio") is None:
            raise ClientError(
                f"{variable} names the proxy {found}, and the package for SOCKS is not installed.",
                remedy=f"Install it: pip install socksio. Or name the host in NO_PROXY: NO_PROXY={url.host}.",
            )
        return found

    def __str__(self) -> str:
        """Its address, without user and password."""
        url = self.proxy.url
        return f"{url.scheme}://{url.netloc.decode()}"
