"""The configuration of uvicorn, and the certificate."""

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import uvicorn
import uvloop

from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.serving.connection import Connection
from lightretriever.service.settings import Settings

_PATIENCE_S: Final = 30  # a worker that is silent for so long is replaced
_HANDSHAKE_S: Final = 5.0


def server_config(
    app: Callable[..., Any], settings: Settings, certificates: "Certificates", *, workers: int = 1
) -> uvicorn.Config:
    """Return the configuration of a server of an application, or of several workers that make one each."""
    return uvicorn.Config(
        app,
        factory=workers > 1,
        workers=workers,
        loop=f"{__name__}:{Loop.__name__}",
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=_also_mapped(settings.trusted_proxies),
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
        timeout_worker_healthcheck=_PATIENCE_S,
        ssl_certfile=settings.tls_certificate_file,
        ssl_keyfile=settings.tls_key_file,
        ssl_context_factory=None if settings.tls_certificate_file is None else certificates,
    )


class Loop(uvloop.Loop):
    """An event loop that closes a connection whose TLS handshake takes 5 s, not a minute: it has a file, and is in no
    count of connections until then."""

    async def create_server(self, *args: Any, **settings: Any) -> asyncio.Server:
        """Listen, as uvicorn asks for it."""
        if settings.get("ssl") is not None:
            settings["ssl_handshake_timeout"] = _HANDSHAKE_S
        return cast(asyncio.Server, await super().create_server(*args, **settings))


class Certificates:
    """Has new connections use the files of a certificate when they change."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._make: Callable[[], ssl.SSLContext] | None = None
        self._newest: ssl.SSLContext | None = None

    def __call__(self, config: uvicorn.Config, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """Make the context, as uvicorn asks for it."""
        self._make = default
        context = self._newest = default()
        context.sni_callback = self._take_newest
        return context

    def watched(self) -> list[WatchedFile[None]]:
        """Return the files, as one to watch; none without a certificate."""
        named = (self._settings.tls_certificate_file, self._settings.tls_key_file)
        files = [file for file in named if file is not None]
        return [WatchedFile("certificates", files, self._use)] if files else []

    def _use(self, content: bytes) -> None:
        check_tls(self._settings)
        if self._make is not None:
            self._newest = self._make()

    def _take_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Set the newest context on a connection that begins. A context in use is never changed: a handshake between
        its new certificate and its new key would fail."""
        if self._newest is not None:
            connection.context = self._newest


def check_tls(settings: Settings) -> None:
    """Raise SettingsError unless certificate and private key can be used, if there are any."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise SettingsError(
                "Setting 'tls_key_file' is set, but 'tls_certificate_file' is not.", remedy="Set both, or neither."
            )
        return
    try:  # without a password, OpenSSL would ask at the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"Settings 'tls_certificate_file' and 'tls_key_file': {certificate} and {key or certificate} can't be "
            f"used: {error}.",
            remedy="Name PEM files of a certificate and its private key, which is not encrypted.",
        ) from error


def _also_mapped(proxies: str) -> str:
    """The trusted networks, those of IPv4 also as a socket of IPv6 has them: 10.0.0.0/8 is ::ffff:10.0.0.0/104, too."""
    networks = [ipaddress.ip_network(name.strip()) for name in proxies.split(",") if name.strip() not in ("", "*")]
    mapped = (f"::ffff:{net.network_address}/{96 + net.prefixlen}" for net in networks if net.version == 4)
    return ",".join([proxies.strip(), *mapped])
