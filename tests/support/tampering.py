"""Bundles with something wrong, for tests of what notices it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["copy_of", "edit_manifest", "flip_bit", "resign"]


def copy_of(bundle: Path, parent: Path) -> Path:
    """A copy of a bundle that may be damaged."""
    return Path(shutil.copytree(bundle, parent / "copy"))


def edit_manifest(bundle: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as JSON; nothing checks the result."""
    file = bundle / "manifest.json"
    record = json.loads(file.read_bytes())
    edit(record)
    file.write_text(json.dumps(record), encoding="utf-8")


def resign(bundle: Path) -> None:
    """List the files as they are now, so that only what is inside them can be wrong."""

    def edit(record: dict[str, Any]) -> None:
        record["files"] = {
            path.relative_to(bundle).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in sorted(bundle.rglob("*"))
            if path.is_file() and path.name != "manifest.json"
        }
        record["tokenizer"]["sha256"] = record["files"]["tokenizer.json"]["sha256"]

    edit_manifest(bundle, edit)


def flip_bit(path: Path, place: float = 0.5) -> None:
    """Flip one bit at a relative place of a file."""
    content = bytearray(path.read_bytes())
    content[min(int(place * len(content)), len(content) - 1)] ^= 0x10
    path.write_bytes(content)
