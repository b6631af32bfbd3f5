"""A real server in a process of its own, and a place that it serves from."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import httpx2

from tests.support.keys import keys_file, new_key
from tests.support.machine import QUICK_JAVA

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from lightretriever.service.collections.collections import parse_folders
from lightretriever.service.serving.server import run
from lightretriever.service.settings import load_settings
host, port, workers, *bundles = sys.argv[1:]
sys.exit(run(parse_folders(bundles), host=host, port=int(port), settings=load_settings(), workers=int(workers)))
"""


class Server:
    """Starts at once; `url` waits until the server says that it is ready."""

    def __init__(
        self,
        bundle: Path | Mapping[str, Path],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        workers: int = 1,
        **settings: object,
    ) -> None:
        bundles = [str(bundle)] if isinstance(bundle, Path) else [f"{name}={path}" for name, path in bundle.items()]
        settings = {"deadline_ms": 60_000, "warm_up_queries": 3, **settings}
        variables = {f"LIGHTRETRIEVER_{name.upper()}": str(value) for name, value in settings.items()}
        self._errors = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # a pipe nobody reads would fill up
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, host, str(port), str(workers), *bundles],
            cwd=ROOT,
            env={**os.environ, **QUICK_JAVA, **variables, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @cached_property
    def ready_line(self) -> str:
        """The line that the server prints when it is ready; empty if the server ends before."""
        if self.process.stdout is None:
            raise RuntimeError("there is no pipe")
        return self.process.stdout.readline()

    @property
    def url(self) -> str:
        assert self.ready_line, self.wait()
        return self.ready_line.split()[-1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def peak_mb(self) -> float:
        """The most memory that the process has had, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    @property
    def errors(self) -> str:
        """The server's stderr so far, without what each JVM says of the variable that it has read. It is read without a
        seek, since reader and server share the file's position."""
        file = self._errors.fileno()
        lines = os.pread(file, os.fstat(file).st_size, 0).decode().splitlines(True)
        return "".join(line for line in lines if not line.startswith("Picked up _JAVA_OPTIONS"))

    def wait(self) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output, self.errors

    def stop(self) -> tuple[int, str, str]:
        """Ask the server to end, and wait for it."""
        self.process.terminate()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._errors.close()


def is_ready(url: str) -> bool:
    """Whether a server listens at this address and is ready."""
    try:
        return httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
    except httpx2.TransportError:
        return False


def flip(link: Path, target: Path) -> None:
    """Lead a link to another folder, in one step."""
    following = link.with_name("next")
    following.symlink_to(target)
    following.replace(link)


DOCUMENTS = 1000


class Place:
    """Two versions of a bundle, a link that leads to the first one, and a key."""

    def __init__(self, folder: Path, versions: tuple[Path, Path]) -> None:
        self.versions, self.link = versions, folder / "current"
        self.link.symlink_to(versions[0])
        self.key, entry = new_key("all", ["search", "admin"])
        self.keys = keys_file(folder, entry)
        self.headers = {"authorization": f"Bearer {self.key}"}

    @contextmanager
    def served(self, **settings: Any) -> Iterator[tuple[Server, str]]:
        """Serve what the link leads to, in a process of its own; give it and its address when it is ready."""
        chosen: dict[str, Any] = {"api_keys_file": self.keys, "log_level": "error", "watch_s": 0, **settings}
        with Server(self.link, **chosen) as server:
            yield server, server.url

    def swap(self, url: str, version: int) -> httpx2.Response:
        """Lead the link to another version, and let the server at this address take it."""
        flip(self.link, self.versions[version])
        return httpx2.post(f"{url}/admin/reload", headers=self.headers, timeout=120)
