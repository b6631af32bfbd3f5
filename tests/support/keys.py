"""API keys and files of them."""

import hashlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from lightretriever.service.http.api_keys import KeyEntry, KeyScope


def new_key(name: str, scopes: Sequence[KeyScope], collections: Sequence[str] = ()) -> tuple[str, KeyEntry]:
    """Return a random key and its entry, for all collections if none is named."""
    key = f"lr_{secrets.token_hex(32)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    return key, KeyEntry(name=name, sha256=digest, scopes=[*scopes], collections=[*collections] or None)


def keys_file(path: Path, *entries: KeyEntry) -> Path:
    """Write the entries to a file, or to keys.json where `path` is a folder, and give the file."""
    file = path / "keys.json" if path.is_dir() else path
    file.write_text(json.dumps([entry.model_dump(exclude_none=True) for entry in entries]))
    return file
