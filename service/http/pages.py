"""The HTML pages: each is one answer, whose policy allows only its own inline scripts and styles."""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fastapi import Response

__all__ = ["Page"]


_PART: Final = re.compile(r'<link rel="stylesheet" href="(?P<style>[^"]+)">|<script src="(?P<script>[^"]+)"></script>')


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its content security policy."""

    html: bytes
    policy: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a page and inline the scripts and styles of its folder that it names (`src`, `href`). The policy lists
        their hashes, so an injected script never runs. Raises OSError for a missing part."""
        html = _PART.sub(lambda part: _inlined(path.parent, part), path.read_text("utf-8"))
        policy = (
            f"default-src 'none'; script-src {_hashes(html, 'script')}; style-src {_hashes(html, 'style')}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return cls(html.encode(), policy)

    def response(self) -> Response:
        """Return the page as an answer."""
        headers = {"content-security-policy": self.policy, "cache-control": "no-cache"}
        return Response(self.html, headers=headers, media_type="text/html")


def _inlined(folder: Path, part: re.Match[str]) -> str:
    tag = str(part.lastgroup)
    return f"<{tag}>\n{(folder / part[tag]).read_text('utf-8')}</{tag}>"


def _hashes(html: str, tag: str) -> str:
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digests = (hashlib.sha256(content.encode()).digest() for content in contents)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
