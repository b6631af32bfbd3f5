"""Bundles with something wrong, for tests of what notices it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from xxhash import xxh3_128

from lightretriever.artifacts.sparse.writer import ImpactIndexWriter


def copy_of(bundle: Path, parent: Path) -> Path:
    """A copy of a bundle that may be damaged."""
    return Path(shutil.copytree(bundle, parent / "copy"))


def edit_json(file: Path, **changes: object) -> None:
    """Set keys of a file with a JSON object."""
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, **changes}), encoding="utf-8")


def sign(record: dict[str, Any]) -> dict[str, Any]:
    """A manifest with `manifest_sha256` for the fields it has now, whatever they are."""
    fields = {key: value for key, value in record.items() if key != "manifest_sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return fields | {"manifest_sha256": hashlib.sha256(canonical.encode()).hexdigest()}


def edit_manifest(bundle: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as JSON, and sign it as if it had been written so; nothing else checks the result."""
    file = bundle / "manifest.json"
    record = json.loads(file.read_bytes())
    edit(record)
    file.write_text(json.dumps(sign(record)), encoding="utf-8")


def resign(bundle: Path) -> None:
    """List the files as they are now, so that only what is inside them can be wrong."""

    def edit(record: dict[str, Any]) -> None:
        record["files"] = {
            path.relative_to(bundle).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "xxh3": xxh3_128(path.read_bytes()).hexdigest(),
            }
            for path in sorted(bundle.rglob("*"))
            if path.is_file() and path.name != "manifest.json"
        }
        record["tokenizer"]["sha256"] = record["files"]["tokenizer.json"]["sha256"]

    edit_manifest(bundle, edit)


def spoil_vector(bundle: Path, value: float) -> None:
    """Set a number of the first document's vector, and sign the bundle."""
    file = str(bundle / "dense.faiss")
    index = faiss.read_index(file)
    vectors = index.reconstruct_n(0, index.ntotal)
    vectors[0, 0] = value
    index.reset()
    index.add(vectors)
    faiss.write_index(index, file)
    resign(bundle)


def flip_bit(path: Path, place: float = 0.5) -> None:
    """Flip one bit at a relative place of a file."""
    content = bytearray(path.read_bytes())
    content[min(int(place * len(content)), len(content) - 1)] ^= 0x10
    path.write_bytes(content)


def rewrite_lucene(bundle: Path, ids: list[str], documents: list[bytes]) -> None:
    """Write other documents into the Lucene index of a bundle, and sign it."""
    for file in (bundle / "lucene").iterdir():
        file.unlink()
    count = len(ids)
    with ImpactIndexWriter(bundle / "lucene") as writer:
        writer.add(
            ids, documents, np.arange(count + 1), np.arange(count, dtype=np.int32), np.ones(count, dtype=np.int32)
        )
    resign(bundle)
