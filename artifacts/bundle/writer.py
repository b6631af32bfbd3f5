"""Writing a bundle: what encodes queries, what is searched, then the manifest."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from lightretriever.artifacts.bundle.content import BundleContent
from lightretriever.artifacts.bundle.document_side import write_dense, write_documents
from lightretriever.artifacts.bundle.hashes import list_files
from lightretriever.artifacts.bundle.manifest import (
    MANIFEST_FILE,
    FusionInfo,
    Manifest,
    TokenizerInfo,
    check_outside,
    table_file,
)
from lightretriever.artifacts.bundle.query_side import write_query_side
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.software import generator
from lightretriever.artifacts.bundle.thresholds import with_thresholds
from lightretriever.artifacts.dense.build import check_factory
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.files.atomic_dir import new_folder
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.tokens.table import TokenTable

__all__ = ["write_bundle", "write_query_bundle"]


def write_bundle(target: Path, content: BundleContent, *, overwrite: bool = False) -> Bundle:
    """Write a bundle to the folder `target`, which appears whole or not at all, and open it.

    With `overwrite`, an older bundle is replaced, and stays in place until the new one is complete. Raises CorpusError
    for documents that can't be used, RecipeError for settings that don't fit each other, BundleError when `target` is
    in the way, or a table or `idf` holds values that can't be stored.
    """
    check_outside(target)
    _check_settings(content)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        queries = write_query_side(folder, content)
        tokenizer, tasks = queries.tokenizer, queries.tasks
        documents = write_documents(folder, content, queries.vocabulary)
        dense = None
        if content.dense is not None:
            table = TokenTable.open(folder / table_file(content.default_task))
            dense = write_dense(folder, content, content.dense, documents, table, tokenizer, queries.vocabulary)
            tasks = with_thresholds(folder, tasks, dense, tokenizer)
        manifest = Manifest(
            name=content.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            generator=generator(),
            model=content.model,
            corpus=content.corpus,
            vocab_size=tokenizer.vocab_size,
            dimension=content.dimension,
            documents=documents.ids.count,
            tokenizer=TokenizerInfo(sha256=tokenizer.sha256, lowercase=content.lowercase, bare=content.bare),
            default_task=content.default_task,
            tasks=tasks,
            dense=dense,
            sparse=queries.sparse,
            fusion=None if content.weights is None else FusionInfo(**content.weights.model_dump()),
            fields=dict(content.fields),
            field_names=documents.fields,
            examples=list(content.examples),
            live=content.live,
            ids_sha256=documents.ids.hex(),
            files=list_files(folder),
        )
        with writing(folder / MANIFEST_FILE):
            (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    return Bundle.open(target)


def _check_settings(content: BundleContent) -> None:
    tables, dimension = content.tables, content.dimension
    for task, table in tables.items():
        if table.rows.ndim != 2 or not 1 <= dimension <= table.rows.shape[1]:
            raise RecipeError(
                f'Dimension {dimension} does not fit the table "{task}" of shape {table.rows.shape}.',
                remedy="Choose a dimension from 1 to the model's hidden size.",
            )
    if content.dense is not None and content.dense.factory is not None:
        check_factory(content.dense.factory, dimension)


def write_query_bundle(bundle: Bundle, target: Path, *, overwrite: bool = False) -> Bundle:
    """Copy all files but the two indexes into the folder `target`, which appears whole or not at all.

    The manifest stays the same, and so does the version. Raises BundleError when `target` is in the way.
    """
    check_outside(target)
    part = Bundle(bundle.path, bundle.manifest, indexes=False)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        for file in [MANIFEST_FILE, *part.files]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / file, folder / file)
    return Bundle.open(target, indexes=False)
