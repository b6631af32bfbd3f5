"""Tiny runs of every stage, and what they leave."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from tests.support import recipes
from tests.support.models import save_model
from tests.support.toy import save_toy_model, write_toy_set

TASKS = {"web": "Given a web search query, retrieve relevant passages", "fact": "Given a claim, find its evidence"}


def write_recipe(folder: Path, documents: int = 40) -> Path:
    """A model, a corpus, and a recipe over both, which is returned; `work` and `bundle` lie beside it."""
    encode = {"max_length": 48, "top_k": 30, "shard_size": 4}
    model = save_model(folder / "model", "llama")
    return recipes.write_recipe(folder, model, documents=documents, tasks=TASKS, encode=encode)


def write_train_recipe(folder: Path) -> Path:
    """A toy model, its pairs, and a recipe of two stages for them, which is returned."""
    save_toy_model(folder / "model")
    write_toy_set(folder / "pairs", "train", 200, seed=1)
    contrastive = {"kind": "contrastive", "steps": 4, "batch_size": 8, "negatives": 0, "sparse_temperature": 1.0}
    parts = {"lora": {"r": 8, "alpha": 16, "dropout": 0.1}, "stages": [{**contrastive, "steps": 3}, contrastive]}
    recipe = recipes.training(folder, folder / "model", folder / "pairs", **parts)
    return recipes.save(folder / "train.yaml", recipe)


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
        everything.update(json.dumps(index.rows(0, index.count)).encode())
    return {"facts": json.dumps(facts, sort_keys=True), "lucene": everything.hexdigest(), **hashes}


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder, with its SHA-256."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
