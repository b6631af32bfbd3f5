"""General token tables: fitted once to texts of all kinds, so that a new corpus needs only its documents encoded.

FOLDER/table.npy, table.scale.npy   the rows, as a bundle holds them
FOLDER/table.json                   the encoder, the texts with their licences, and the agreement on held-out texts

A table belongs to one encoder: `find_general_table` compares the tokenizer, the size of its vectors, and, on a
few texts, the vectors of the table with those of the encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import torch
from pydantic import ValidationError

from lightretriever.artifacts.bundle.manifest import ManifestPart
from lightretriever.artifacts.corpus.beir import Corpus, has_file, read_queries
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.files.atomic import new_folder
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.pipeline.encoder import Encoder, token_rows
from lightretriever.artifacts.pipeline.encoders import load_encoder
from lightretriever.artifacts.pipeline.fit import (
    Agreement,
    FitTexts,
    agreement_line,
    corpus_sentences,
    distinct_rows,
    draw,
    fit_table,
    table_queries,
    teacher_vectors,
)
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, GeneralTableRecipe
from lightretriever.artifacts.pipeline.rows import Rows
from lightretriever.artifacts.reports import Summary, folder_size, megabytes
from lightretriever.artifacts.tokens.idf import count_tokens
from lightretriever.artifacts.tokens.table import TokenTable, write_table

TABLE_FILE: Final = "table.npy"
FACTS_FILE: Final = "table.json"
_MIN_COSINE: Final = 0.3
"""Mean cosine of a table's vectors with those of its own encoder, at least; another encoder's has about 0."""


class GeneralTableInfo(ManifestPart):
    """Facts of a general table: the encoder's name, the SHA-256 of its tokenizer, the agreement with it on held-out
    texts before the fit and after, and the sets of texts that it was fitted to: name, licence, how many documents, and
    how many queries and sentences."""

    format: Literal[1] = 1
    encoder: str
    tokenizer_sha256: str
    licence: str
    epoch: int
    agreement: tuple[Agreement, Agreement]
    texts: list[dict[str, str | int]]


@dataclass(frozen=True)
class GeneralTable:
    """A general table on disk."""

    folder: Path
    info: GeneralTableInfo

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the facts of a table. Raises RecipeError where `folder` has none."""
        try:
            return cls(folder, GeneralTableInfo.model_validate_json((folder / FACTS_FILE).read_bytes()))
        except (OSError, ValidationError) as error:
            raise RecipeError(
                f"{folder}: is no general table: {FACTS_FILE} is missing or can't be read.",
                remedy="Give the folder that `lightretriever build` wrote of a recipe of this kind.",
            ) from error

    @property
    def sha256(self) -> str:
        """SHA-256 of the rows' file, as hex."""
        return file_sha256(self.folder / TABLE_FILE)

    def rows(self) -> Float32Array:
        """E, (V, H)."""
        table = TokenTable.open(self.folder / TABLE_FILE)
        return table.rows(np.arange(table.shape[0]))


def find_general_table(encoder: Encoder, texts: Sequence[str], folders: Sequence[Path]) -> GeneralTable | None:
    """The first of the tables that is the encoder's: same tokenizer, same size, and similar vectors of those of the
    `texts` that have a token."""
    bags = {text: ids for text, ids in zip(texts, encoder.tokenizer.as_queries(texts), strict=True) if len(ids)}
    for table in map(GeneralTable.open, folders):
        shape = TokenTable.open(table.folder / TABLE_FILE).shape
        same = table.info.tokenizer_sha256 == encoder.tokenizer.sha256
        if bags and same and shape == (encoder.tokenizer.vocab_size, encoder.hidden_size):
            ours = table_queries(torch.from_numpy(table.rows()), Rows.of(list(bags.values()))).numpy()
            if (ours * encoder.encode_queries(list(bags)).dense).sum(axis=1).mean() >= _MIN_COSINE:
                return table
    return None


def shipped_tables() -> list[Path]:
    """The folders of the tables that come with the program."""
    return sorted(file.parent for file in (Path(__file__).parents[1] / "tables").glob(f"*/{FACTS_FILE}"))


def run_general_table(recipe: GeneralTableRecipe, *, overwrite: bool = False) -> Summary:
    """Fit the table and write its folder. The work directory keeps the encoded texts.

    Raises CorpusError for texts that can't be read, RecipeError for too few, and ModelError.
    """
    documents, queries, infos = _read(recipe)
    encoder = load_encoder(recipe.model, EncodeRecipe(), biencoder=True)
    vectors = teacher_vectors(encoder, documents, None, recipe.work / "documents")
    asked = teacher_vectors(encoder, queries, "", recipe.work / "queries")
    bags = [ids[: encoder.longest] for ids in encoder.tokenizer.as_queries([*documents, *queries])]
    texts = FitTexts.of(bags[: len(documents)], vectors, bags[len(documents) :], asked, recipe.fit)
    states = token_rows(encoder, "", recipe.work / "states")
    statistics = count_tokens(bags, encoder.tokenizer.vocab_size)
    fitted = fit_table(distinct_rows(states, statistics), texts, recipe.fit, encoder.device)
    info = GeneralTableInfo(
        encoder=encoder.name,
        tokenizer_sha256=encoder.tokenizer.sha256,
        licence=recipe.licence,
        epoch=fitted.best,
        agreement=(fitted.epochs[0], fitted.epochs[fitted.best]),
        texts=infos,
    )
    with new_folder(recipe.output, overwrite=overwrite, marker=FACTS_FILE) as folder:
        write_table(folder / TABLE_FILE, fitted.rows, recipe.table_dtype)
        (folder / FACTS_FILE).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
    counts = {name: sum(int(texts[name]) for texts in infos) for name in ("documents", "queries")}
    size = folder_size(recipe.output)[1]
    line = f"{recipe.output}: table of {encoder.name}, {megabytes(size)}, fitted to {counts['documents']:,} documents, "
    facts = {"stage": "general-table", "encoder": encoder.name, **counts, "agreement": fitted.facts, "bytes": size}
    lines = [f"{line}{counts['queries']:,} queries and sentences", f"  {agreement_line(fitted.facts)}"]
    return Summary(str(recipe.output), lines, facts)


def _read(recipe: GeneralTableRecipe) -> tuple[list[str], list[str], list[dict[str, str | int]]]:
    """Documents, and queries and sentences, each text once. Raises RecipeError for a folder that gives none."""
    documents, queries, infos = dict[str, None](), dict[str, None](), list[dict[str, str | int]]()
    for number, texts in enumerate(recipe.texts):
        seed, read, asked = (recipe.fit.seed, number), list[Document](), list[str]()
        if has_file(texts.path, "corpus"):
            read = draw(list(Corpus(texts.path)), texts.documents, seed)
            asked = corpus_sentences(read, texts.sentences, recipe.fit.seed)
        if has_file(texts.path, "queries"):
            asked += draw(list(read_queries(texts.path).values()), texts.queries, seed)
        if not read and not asked:
            raise RecipeError(
                f"texts[{number}].path: {texts.path} gives no documents and no queries.",
                remedy="Give a folder with corpus.jsonl or queries.jsonl, packed by gzip or not, or take it out.",
            )
        counts = {"documents": len(read), "queries": len(asked)}
        infos.append({"name": texts.name, "licence": texts.licence, **counts})
        documents |= dict.fromkeys(document.full_text for document in read)
        queries |= dict.fromkeys(asked)
    return list(documents), [text for text in queries if text not in documents], infos
