"""The HTML pages: self-contained files, allowed to run their own inline script and style and nothing else."""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fastapi import Response

__all__ = ["Page"]


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its content security policy."""

    html: bytes
    policy: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a page. Its policy names the hash of each inline script and style, so an injected one never runs."""
        html = path.read_text("utf-8")
        policy = (
            f"default-src 'none'; script-src {_hashes(html, 'script')}; style-src {_hashes(html, 'style')}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return cls(html.encode(), policy)

    def response(self) -> Response:
        """Give the page as an answer."""
        headers = {"content-security-policy": self.policy, "cache-control": "no-cache"}
        return Response(self.html, headers=headers, media_type="text/html")


def _hashes(html: str, tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digests = (hashlib.sha256(content.encode()).digest() for content in found)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
