"""A tiny build with every stage, and what its bundle holds."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from artifacts.bundle import Bundle
from tests.support.models import save_model, write_corpus

__all__ = ["content", "files", "write_recipe"]

TASKS = {"web": "Given a web search query, retrieve relevant passages", "fact": "Given a claim, find its evidence"}


def write_recipe(folder: Path, documents: int = 40) -> Path:
    """A model, a corpus, and a recipe over both, which is returned; `work` and `bundle` lie beside it."""
    content = {
        "name": "tiny",
        "model": {"path": str(save_model(folder / "model", "llama")), "device": "cpu"},
        "corpus": {"path": str(write_corpus(folder / "corpus.jsonl", documents)), "name": "tiny"},
        "tasks": TASKS,
        "default_task": "web",
        "encode": {"max_length": 48, "top_k": 30, "shard_size": 4},
        "index": {"factory": "HNSW16,Flat"},
        "work": str(folder / "work"),
        "output": str(folder / "bundle"),
    }
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    return recipe


def content(path: Path) -> dict[str, Any]:
    """All that a bundle holds: hashes of its files and of its manifest's facts; of the Lucene index, whose files bear a
    random mark and the time, every id, document, term and impact instead."""
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    facts = manifest.model_dump(mode="json", exclude={"created", "files"})
    hashes = {name: file.sha256 for name, file in manifest.files.items() if not name.startswith("lucene/")}
    with bundle.sparse() as index:
        everything = hashlib.sha256("\n".join(index.ids()).encode())
        for document in index.documents(np.arange(index.count)):
            everything.update(document)
        for term in range(manifest.vocab_size):
            for part in index.search(np.array([term]), np.ones(1, dtype=np.float32), index.count):
                everything.update(part.tobytes())
    return {"facts": json.dumps(facts, sort_keys=True), "lucene": everything.hexdigest(), **hashes}


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder, with its SHA-256."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
