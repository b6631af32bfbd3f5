"""Writing what encodes queries: tokenizers, token tables, head queries and IDF."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.content import BundleContent
from lightretriever.artifacts.bundle.manifest import (
    HeadInfo,
    SparseInfo,
    TaskInfo,
    TokenizerInfo,
    head_files,
    table_file,
)
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.idf import IDF_FILE, save_idf
from lightretriever.artifacts.tokens.table import write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["QuerySide", "write_query_side"]

_TOKENIZER_FILE: Final = "tokenizer.json"
_SPARSE_TOKENIZER_FILE: Final = "sparse_tokenizer.json"


@dataclass(frozen=True)
class QuerySide:
    """What was written: the tokenizer of the tables, the vocabulary of the sparse leg, and what the manifest says of
    both."""

    tokenizer: TextTokenizer
    tasks: dict[str, TaskInfo]
    vocabulary: Vocabulary
    sparse: SparseInfo


def write_query_side(folder: Path, content: BundleContent) -> QuerySide:
    """Write the files into the folder of a bundle. Raise BundleError for a tokenizer that is none, for a table or IDF
    of another number of token ids, and for values that can't be stored."""
    lowercase, sparse = content.lowercase, content.sparse
    tokenizer = TextTokenizer.from_file(content.tokenizer_file, lowercase=lowercase)
    with writing(folder / _TOKENIZER_FILE):
        shutil.copyfile(content.tokenizer_file, folder / _TOKENIZER_FILE)

    tasks: dict[str, TaskInfo] = {}
    for task, table in content.tables.items():
        tasks[task] = TaskInfo(instruction=table.instruction)
        if content.dense is None:
            continue
        if len(table.rows) != tokenizer.vocab_size:
            raise BundleError(
                f'The table "{task}" has {len(table.rows)} rows, but the tokenizer has {tokenizer.vocab_size} token '
                "ids.",
                remedy="Make the table with this tokenizer.",
            )
        (folder / "tables").mkdir(exist_ok=True)
        write_table(folder / table_file(task), table.rows[:, : content.dimension], content.table_dtype)
        head = None
        if table.head is not None:
            (folder / "heads").mkdir(exist_ok=True)
            head = HeadInfo(queries=len(table.head), sparse=table.head.sparse is not None)
            table.head.save([folder / file for file in head_files(task, sparse=head.sparse)], content.dimension)
        tasks[task] = TaskInfo(
            file=table_file(task), instruction=table.instruction, dtype=content.table_dtype, head=head
        )
    if sparse.vocabulary == "words":
        return QuerySide(tokenizer, tasks, Vocabulary(None, sparse.language), sparse)

    terms, own = tokenizer, None
    if content.sparse_tokenizer_file is not None:
        terms = TextTokenizer.from_file(content.sparse_tokenizer_file, lowercase=lowercase)
        with writing(folder / _SPARSE_TOKENIZER_FILE):
            shutil.copyfile(content.sparse_tokenizer_file, folder / _SPARSE_TOKENIZER_FILE)
        own = TokenizerInfo(
            file=_SPARSE_TOKENIZER_FILE, sha256=terms.sha256, lowercase=lowercase, vocab_size=terms.vocab_size
        )
    weights, idf_file = "count", None
    if content.idf is not None:
        if len(content.idf) != terms.vocab_size:
            raise BundleError(
                f"There are {len(content.idf)} IDF weights, but the tokenizer has {terms.vocab_size} token ids.",
                remedy="Count them with this tokenizer.",
            )
        save_idf(folder / IDF_FILE, content.idf)
        weights, idf_file = "idf_count", IDF_FILE
    written = sparse.model_copy(
        update={"query_weights": weights, "idf": idf_file, "tokenizer": own or sparse.tokenizer}
    )
    return QuerySide(tokenizer, tasks, Vocabulary(terms, None), written)
