"""A place to serve from: two versions of a bundle, the link that leads to one of them, and a key."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx2

from tests.service.process import Server
from tests.service.test_swap import flip
from tests.support.keys import keys_file, new_key

DOCUMENTS = 1000


@dataclass(frozen=True)
class Place:
    """`link` leads to one of `versions`."""

    versions: tuple[Path, Path]
    link: Path
    keys: Path
    key: str

    @classmethod
    def make(cls, folder: Path, versions: tuple[Path, Path]) -> Self:
        """Lead a link in the folder to the first of two versions, and make a key."""
        link = folder / "current"
        link.symlink_to(versions[0])
        key, entry = new_key("all", ["search", "admin"])
        return cls(versions, link, keys_file(folder, entry), key)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @contextmanager
    def served(
        self, *, workers: int = 1, environment: Mapping[str, str] | None = None, **settings: object
    ) -> Iterator[tuple[Server, str]]:
        """Serve what the link leads to, in a process of its own; give it and its address when it is ready."""
        chosen = {"api_keys_file": self.keys, "log_level": "error", "watch_s": 0, **settings}
        variables = {f"LIGHTRETRIEVER_{name.upper()}": str(value) for name, value in chosen.items()}
        with Server(self.link, environment={**variables, **(environment or {})}, workers=workers) as server:
            yield server, server.url

    def swap(self, url: str, version: int) -> httpx2.Response:
        """Lead the link to another version, and let the server at this address take it."""
        flip(self.link, self.versions[version])
        return httpx2.post(f"{url}/admin/reload", headers=self.headers, timeout=120)
