"""Recipes over tiny documents, the encoded texts that their builds keep, and what builds have made."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.pipeline.rows import ModelRows
from lightretriever.artifacts.pipeline.store import TextStore, column
from tests.support.models import write_corpus


def write_recipe(
    folder: Path,
    model: Path | Mapping[str, Any],
    *,
    documents: int,
    tasks: Mapping[str, str] | None = None,
    **sections: Any,
) -> Path:
    """Write a recipe and its corpus of so many documents into a folder, where `work` and `bundle` are to lie, too.
    `model` is a folder or the whole section. Without `tasks`, it names none; otherwise the first is the default one.
    The kind is an encoder where the model's folder has modules, or as `kind` says."""
    path = model if isinstance(model, Path) else Path(str(model["path"]))
    recipe = {
        "name": "tiny",
        "kind": "encoder" if (path / "modules.json").is_file() or "distil" in sections else "language-model",
        "model": {"device": "cpu", **({"path": str(model)} if isinstance(model, Path) else model)},
        "corpus": {"path": str(write_corpus(folder / "corpus.jsonl", documents)), "name": "tiny"},
        "work": str(folder / "work"),
        "output": str(folder / "bundle"),
        **({"tasks": dict(tasks), "default_task": next(iter(tasks))} if tasks else {}),
        **sections,
    }
    return save(folder / "recipe.yaml", recipe)


def training(folder: Path, model: Path, texts: Path, /, **sections: Any) -> dict[str, Any]:
    """A recipe of a training on one set, whose `work` and `adapter` are to lie in a folder."""
    return {
        "name": "toy",
        "model": {"path": str(model), "device": "cpu"},
        "lora": {"r": 8, "alpha": 16, "dropout": 0.0},
        "data": {"sets": [{"path": str(texts), "instruction": "find"}], "max_document_length": 16},
        "checkpoint_every": 2,
        "work": str(folder / "work"),
        "output": str(folder / "adapter"),
        **sections,
    }


def save(file: Path, recipe: Mapping[str, Any]) -> Path:
    """Write a recipe to a file, and give it."""
    file.write_text(yaml.safe_dump(dict(recipe)))
    return file


def copied(folder: Path, copy: Path) -> Path:
    """Copy a folder with a recipe and what was built of it, and give the recipe, whose paths lie in the copy."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(folder), str(copy)))
    return recipe


def change(recipe: Path, values: Mapping[str, Any] | None = None, *, without: str | None = None) -> Path:
    """Set dotted keys, such as `index.top_k`, of a recipe, take a section out of it, and give its file."""
    content = yaml.safe_load(recipe.read_text())
    for key, value in (values or {}).items():
        *sections, last = key.split(".")
        reduce(getitem, sections, content)[last] = value
    content.pop(without, None)
    recipe.write_text(yaml.safe_dump(content))
    return recipe


def kept_texts(path: Path) -> int:
    """How many texts a store has, while another process may write it."""
    count = 0
    for source in path.glob("run-*"):
        try:
            count += len(column(source, "texts")) if not source.suffix else 0
        except ResumeError:
            continue  # it was joined with others
    return count


def encoded_rows(path: Path) -> ModelRows:
    """The rows of a finished store, those of a corpus of different texts in its order."""
    (source,) = path.glob("run-*")
    return TextStore(path).rows(column(source, "texts"))


def keep_texts(path: Path, count: int) -> None:
    """Take all but the first texts of a finished store away."""
    (joined,) = (source for source in path.glob("run-*") if not source.suffix)
    store, texts = TextStore(path), column(joined, "texts")[:count].copy()
    rows = store.rows(texts)
    for source in path.glob("run-*"):
        shutil.rmtree(source)
    store.add(texts, rows)


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
