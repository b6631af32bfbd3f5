"""The HTML pages: each is one answer, whose policy allows only its own inline scripts and styles."""

import base64
import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from starlette.responses import Response

_PART: Final = re.compile(r'<link rel="stylesheet" href="(?P<style>[^"]+)">|<script src="(?P<script>[^"]+)"></script>')


def read_page(path: Path) -> Callable[[], Response]:
    """Return what makes a page's answer, with the scripts and styles inline that it names (`src`, `href`). The policy
    lists their hashes, so an injected script never runs. OSError for a missing part."""

    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inlined(part: re.Match[str]) -> str:
        tag = str(part.lastgroup)
        content = f"\n{(path.parent / part[tag]).read_text('utf-8')}"
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest())
        hashes[tag].append(f"'sha256-{digest.decode()}'")
        return f"<{tag}>{content}</{tag}>"

    html = _PART.sub(inlined, path.read_text("utf-8"))
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return partial(Response, html.encode(), headers=headers, media_type="text/html")
