"""Reverse proxies as real processes, on configurations of the tests or of the documentation."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["caddy", "connections_to", "haproxy", "nginx"]

_NGINX = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    {http}
}}
"""
_ESTABLISHED = "01"


@contextmanager
def nginx(http: str, port: int, folder: Path) -> Iterator[None]:
    """Run nginx with the content of `http { }`, until `port` is listened at, with its files in `folder`."""
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # the folders of pytest are their owner's alone
    config.write_text(_NGINX.format(user=user, folder=folder, http=http))
    with _running([_program("nginx"), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)], port):
        yield


@contextmanager
def caddy(site: str, port: int, folder: Path) -> Iterator[None]:
    """Run Caddy with the content of a Caddyfile, until `port` is listened at."""
    folder.mkdir(exist_ok=True)
    config = folder / "Caddyfile"
    config.write_text("{\n    admin off\n    auto_https disable_redirects\n    skip_install_trust\n}\n" + site)
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with _running([_program("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)], port, homes):
        yield


@contextmanager
def haproxy(proxies: str, port: int, folder: Path) -> Iterator[None]:
    """Run HAProxy with frontends and backends, until `port` is listened at."""
    folder.mkdir(exist_ok=True)
    config = folder / "haproxy.cfg"
    times = "defaults\n    mode http\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n"
    config.write_text(times + proxies + "\n")
    with _running([_program("haproxy"), "-db", "-f", str(config)], port):
        yield


def connections_to(port: int) -> int:
    """Count the open connections of clients on this machine to a port of 127.0.0.1."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    states = [line.split()[3] for line in lines if line.split()[2] == f"0100007F:{port:04X}"]
    return states.count(_ESTABLISHED)


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"there is no {name}: run deploy/install/install-system slow, or put it on PATH")
    return found


@contextmanager
def _running(command: list[str], port: int, more: dict[str, str] | None = None) -> Iterator[None]:
    with subprocess.Popen(
        command, env={**os.environ, **(more or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not _listens(port):
                if process.poll() is not None:
                    raise RuntimeError(f"{command[0]} has ended: {process.communicate()[1]}")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()
            process.communicate()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60):
        return True
    return False
