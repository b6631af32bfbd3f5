"""Files of API keys."""

import json
from pathlib import Path

from lightretriever.service.http.api_keys import KeyEntry

__all__ = ["keys_file"]


def keys_file(path: Path, *entries: KeyEntry) -> Path:
    """Write the entries to a file, or to keys.json where `path` is a folder, and give the file."""
    file = path / "keys.json" if path.is_dir() else path
    file.write_text(json.dumps([entry.model_dump(exclude_none=True) for entry in entries]))
    return file
