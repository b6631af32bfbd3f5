"""`python -m tests.client.generate_sync` writes the synchronous client from the one for asyncio."""

import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).resolve().parents[2] / "service" / "client"
_REPLACED: Final = (
    (
        '"""The client for asyncio."""',
        '"""The synchronous client. Made from asynchronous.py by tests/client/generate_sync.py."""',
    ),
    ("Use it in one event loop.", "Threads may share it."),
    ("an `async with`", "a `with`"),
    ("import asyncio\n", "from contextlib import nullcontext\nfrom time import sleep\n"),
    ("asyncio.timeout(left_s)", "nullcontext()"),  # httpx2 bounds each wait, and `check` their sum
    ("asyncio.sleep", "sleep"),
    ("AsyncGenerator", "Generator"),
    ("AsyncSearchClient", "SearchClient"),
    ("httpx2.AsyncClient", "httpx2.Client"),
    ("aiter_bytes", "iter_bytes"),
    ("aclose", "close"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("async ", ""),
    ("await ", ""),
)


def generated() -> str:
    """Return the synchronous client's source."""
    source = (CLIENT / "asynchronous.py").read_text(encoding="utf-8")
    for old, new in _REPLACED:
        source = source.replace(old, new)
    for command in (["check", "--fix", "--unsafe-fixes", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "sync.py"), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    (CLIENT / "sync.py").write_text(generated(), encoding="utf-8")
