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

    def inlined(part: re.Match[str]) -> str:
        tag = str(part.lastgroup)
        return f"<{tag}>\n{(path.parent / part[tag]).read_text('utf-8')}</{tag}>"

    def hashes(tag: str) -> str:
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests = (hashlib.sha256(content.encode()).digest() for content in contents)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    html = _PART.sub(inlined, path.read_text("utf-8"))
    policy = (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return partial(Response, html.encode(), headers=headers, media_type="text/html")
