"""The pipeline's stages before the index, each a function of the recipe and its work directory.

WORK/backbone.json       what the later stages need to know of the encoder
WORK/tokenizer.json      its tokenizer
WORK/sparse_tokenizer.json   that of the terms, where another model makes them and has another tokenizer
WORK/idf.npy             what tokens of a query weigh (V,) float32, where the recipe has IDF weights
WORK/encoded/            the corpus, read and checked, and its terms (see `pipeline.encoded`)
WORK/encode/             what the models made of documents (see `pipeline.store`)
WORK/tables/TASK/        token table of a task: table.npy (V, H) float32, plan.json; part-*.npy until it is there
    training.json        with `distil`: how it was fitted
    states/              with `distil`: part-*.npy, the encoder's states of single tokens
    teacher/             with `distil`: the encoder's vectors of the texts that it was fitted to
    head/                with `head`: the encoder's vectors of the head queries
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import BundleError, ModelError, RecipeError
from lightretriever.artifacts.files.arrays import write_array
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically
from lightretriever.artifacts.pipeline.build import fit_inputs, head_texts
from lightretriever.artifacts.pipeline.encode import encode_corpus, given_vectors
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.encoder import PART, Encoder, rows_per_pass, token_rows
from lightretriever.artifacts.pipeline.encoders import Encoders, load_encoders
from lightretriever.artifacts.pipeline.fit import (
    DistilTexts,
    FittedTable,
    agreement_line,
    distinct_rows,
    fit_table,
    teacher_vectors,
)
from lightretriever.artifacts.pipeline.general import GeneralTable, find_general_table, shipped_tables
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import adapter_file, adapter_settings, load_embedding_bag, software
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, Recipe
from lightretriever.artifacts.pipeline.terms import SPARSE_TOKENIZER
from lightretriever.artifacts.reports import Summary, megabytes
from lightretriever.artifacts.tokens.idf import IDF_FILE, idf_sha256, load_idf
from lightretriever.artifacts.tokens.tokenizer import sentences_of

_COMPARED: Final = 64  # texts of the corpus by which a general table is known as the encoder's

_RENEWED: Final = ("batch", "device", "documents", "general", "part", "queries", "settings", "software")
"""Keys of a table's plan that may change: the table is then made again."""


def load_recipe_encoders(recipe: Recipe) -> Encoders:
    """Load the recipe's models and record in the work directory what the bundle will hold and say of them.

    Raises ResumeError, before anything is written, when the directory was begun with another model, adapter, tokenizer
    or number type, and RecipeError when the model can't give the dimension or the length that the recipe asks for, or
    weights don't fit it.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    encoders = load_encoders(recipe)
    encoder, sparse = encoders.dense, encoders.sparse
    dimension, length = recipe.index.dimension, recipe.encode.max_length
    if dimension is not None and dimension > encoder.hidden_size:
        raise RecipeError(
            f"index.dimension is {dimension}, but the vectors of {encoder.name} have {encoder.hidden_size} values.",
            remedy="Lower index.dimension, or leave it out.",
        )
    if isinstance(encoder, LanguageModel) and length > (most := encoder.backbone.max_positions or length):
        raise RecipeError(
            f"encode.max_length is {length}, but {encoder.name} reads {most} positions.",
            remedy="Lower encode.max_length.",
        )
    if recipe.encoder and "lowercase" not in recipe.encode.model_fields_set and encoder.tokenizer.is_cased:
        _warn(
            f"{encoder.name} tells capitals from small letters, and queries are lowercased for its token table, which "
            "was not measured for such encoders: `encode.lowercase: false` keeps their capitals."
        )
    idf = _recipe_idf(recipe, encoders)
    facts: dict[str, Any] = {
        "name": " + ".join(model.name for model in encoders.models),
        "adapter": None if recipe.model.adapter is None else Path(recipe.model.adapter).name,
        "fingerprint": encoders.fingerprint,
        "hidden_size": encoder.hidden_size,
        "lowercase": recipe.encode.lowercase,
        "idf": None if idf is None else idf_sha256(idf),
    }
    if recipe.model.adapter and isinstance(encoder, LanguageModel) and not adapter_settings(recipe.model.adapter):
        facts["bare"] = True  # an adapter made elsewhere, as the official ones
    if sparse is not None:
        for side, model in zip(("dense", "sparse"), encoders.models, strict=True):
            facts[side] = {"name": model.name, "fingerprint": model.fingerprint}
        facts["sparse"] |= {"tokenizer": sparse.tokenizer.sha256 if encoders.apart else None}
    made = [recipe.work / IDF_FILE]  # only `index` reads it
    check_plan(recipe.work / "backbone.json", facts, renewed=("idf",), made=made)
    write_atomically(recipe.work / "tokenizer.json", encoder.tokenizer_json)
    if sparse is not None and encoders.apart:
        write_atomically(recipe.work / SPARSE_TOKENIZER, sparse.tokenizer_json)
    if idf is not None:
        write_array(recipe.work / IDF_FILE, idf)
    return encoders


def _recipe_idf(recipe: Recipe, encoders: Encoders) -> Float32Array | None:
    """The IDF weights that the recipe asks for, or that its adapter brings; those of the corpus are left to `index`."""
    model, vocab_size = recipe.sparse or recipe.model, encoders.models[-1].tokenizer.vocab_size
    if encoders.impacts == "bm25" and model.idf == "corpus":
        raise RecipeError(
            "model.idf is corpus, but BM25 impacts have the IDF in themselves.", remedy="Leave model.idf out."
        )
    if model.idf == "auto" and (encoders.query_weights is not None or encoders.impacts != "learned"):
        return encoders.query_weights
    adapter = model.trained_here
    if model.idf is None or adapter is None or adapter_settings(adapter).get("query_weights") == "count":
        return None
    if not (file := adapter_file(adapter, IDF_FILE)).is_file():
        return None
    try:
        return load_idf(file, vocab_size)
    except BundleError as error:
        raise RecipeError(f"model.idf: {error.message}", remedy=error.remedy) from error


def run_encode(recipe: Recipe, encoders: Encoders, shards: slice | None = None) -> Summary:
    """Encode the recipe's corpus, or some of its `shards`; see `encode_corpus`. The vectors of `distil.vectors` take
    the place of the encoder's; a warning on stderr says that some differ. Raises RecipeError when they don't fit."""
    corpus, vectors = encoded_corpus(recipe, shared=shards is not None), None
    if recipe.distil is not None and recipe.distil.vectors is not None:
        vectors, doubt = given_vectors(recipe.distil.vectors, encoders.dense, corpus)
        if doubt:
            _warn(doubt)
    return encode_corpus(encoders, corpus, recipe.work / "encode", shards=shards, vectors=vectors)


def run_tables(recipe: Recipe, encoders: Encoders) -> Summary:
    """Make the token table of every task, a file of shape (V, H) float32. Existing files are kept, but not those that
    were fitted to other documents.

    The head queries, if the recipe has any, come first: a bad log is found before hours of work. An encoder's tables
    are general ones, where all tasks have one, and a language model's the states of single tokens, or the released ones
    that `tables` names. Else, and with `distil`, they are fitted to what the model makes of whole texts of the encoded
    corpus.

    Raises ModelError for a table that doesn't fit the model, ResumeError when the work directory was begun with other
    inputs or the corpus is not encoded, and RecipeError when there is too little to fit to.
    """
    encoder = encoders.dense
    heads = head_texts(recipe)
    for task, instruction in recipe.tasks.items() if heads else ():
        teacher_vectors(encoder, heads, instruction, recipe.table(task) / "head", label="head")
    released, weights = {} if recipe.encoder else recipe.tables, _row_weights(recipe, encoder)
    if missing := [f"tables.{task}: {file}" for task, file in released.items() if not file.is_file()]:
        raise RecipeError(f"{', '.join(missing)}: there is no such file.", remedy="Give the release's emb_bag.pt.")
    identity = {task: {"model": encoders.fingerprint, "instruction": text} for task, text in recipe.tasks.items()}
    states: dict[str, Any] = {"batch": rows_per_pass(encoder), "part": PART, "device": encoder.device.type}
    states |= {"software": software()} | ({} if weights is None else {"row_weights": idf_sha256(weights)})
    plans = {
        task: identity[task] | ({"file": file_sha256(released[task])} if task in released else states)
        for task in recipe.tasks
    }

    def token_table(task: str, folder: Path) -> Float32Array:
        """The rows of a task's tokens: from the file that the recipe names, or made below a folder."""
        if task in released:
            return load_embedding_bag(released[task], encoder.tokenizer.vocab_size, encoder.hidden_size)
        rows = token_rows(encoder, recipe.tasks[task], folder)
        return rows if weights is None else rows * weights[:, None]

    if not recipe.encoder and recipe.distil is None:
        return _make(recipe, plans, lambda task: token_table(task, recipe.table(task)))
    general = dict[str, GeneralTable]()
    if recipe.encoder:
        general = {task: table for task in recipe.tasks if (table := _general_table(recipe, encoder, task)) is not None}
    rows = {task: table.rows() for task, table in general.items()}
    if recipe.distil is None and rows.keys() == recipe.tasks.keys():
        plans = {task: {**identity[task], "general": table.sha256} for task, table in general.items()}
        return _make(recipe, plans, rows.__getitem__)
    distil = recipe.distil or DistilTableRecipe()
    fitted: dict[str, Any] = {"documents": encoded_corpus(recipe).identity, **fit_inputs(distil)}
    texts_of = cache(lambda: DistilTexts.of(recipe, distil, encoder))

    def fit(task: str) -> FittedTable:
        all_texts, kept = texts_of(), recipe.table(task) / "states"
        texts = all_texts.of_task(recipe.tasks[task], recipe.table(task) / "teacher")
        check_plan(kept / "plan.json", plans[task])
        initial = distinct_rows(token_table(task, kept), all_texts.statistics)
        return fit_table(initial, texts, distil, encoder.device, general=rows.get(task))

    return _make(recipe, {task: {**plan, **fitted} for task, plan in plans.items()}, fit)


def _row_weights(recipe: Recipe, encoder: Encoder) -> Float32Array | None:
    """What rows are multiplied by: its own IDF for an adapter trained with `idf_rows`, whatever queries weigh."""
    adapter = recipe.model.trained_here
    if adapter is None or not adapter_settings(adapter).get("idf_rows"):
        return None
    file = adapter_file(adapter, IDF_FILE)
    if not file.is_file():
        raise ModelError(f"{adapter}: was trained with idf_rows, but has no {IDF_FILE}.", remedy="Fetch it again.")
    return load_idf(file, encoder.tokenizer.vocab_size)


def _general_table(recipe: Recipe, encoder: Encoder, task: str) -> GeneralTable | None:
    """The general table that the recipe names for a task, or else the one that comes with the program for its encoder
    and a task without an instruction, if any. Raises RecipeError for a named one that is another encoder's."""
    named = recipe.tables.get(task)
    if named is None and recipe.tasks[task]:
        return None
    documents = list(islice(encoded_corpus(recipe), _COMPARED))
    texts = [sentence for document in documents for sentence in sentences_of(document.title, document.text)]
    texts = texts or [document.full_text for document in documents]
    table = find_general_table(encoder, texts[:_COMPARED], shipped_tables() if named is None else [named])
    if table is None and named is not None:
        raise RecipeError(
            f"tables.{task}: {named} is not a table of {encoder.name}: tokenizer, size or vectors differ.",
            remedy="Leave the table out, or give the one that was fitted with this encoder.",
        )
    return table


def _make(
    recipe: Recipe, plans: Mapping[str, dict[str, Any]], make: Callable[[str], FittedTable | Float32Array]
) -> Summary:
    """Make the tables that are not there yet, each guarded by its plan; all plans are checked first.

    Beside a fitted table stands `training.json`: the agreement of every epoch. One that was fitted to other texts or by
    other settings is fitted again; the encoder reads only the texts that are new.
    """
    for task, plan in plans.items():
        folder = recipe.table(task)
        made = [folder / "table.npy", folder / "training.json", *folder.glob("part-*.npy")]
        check_plan(folder / "plan.json", plan, renewed=_RENEWED, made=made)
    lines, tables = list[str](), dict[str, dict[str, Any]]()
    for task in plans:
        folder = recipe.table(task)
        file, training = folder / "table.npy", folder / "training.json"
        if not file.is_file():
            rows = make(task)
            if isinstance(rows, FittedTable):
                record = {"agreement": rows.facts, "epochs": [vars(epoch) for epoch in rows.epochs]}
                write_atomically(training, json.dumps(record, indent=1).encode() + b"\n")
                rows = rows.rows
            write_array(file, rows)
        for leftover in folder.glob("part-*.npy*"):
            leftover.unlink()
        (count, dimension), size = np.load(file, mmap_mode="r").shape, file.stat().st_size
        heads = len(head_texts(recipe)) if (folder / "head").is_dir() else 0
        agreement = read_json(training)["agreement"] if training.is_file() else None
        lines.append(f"{task}: {file}, {count:,} tokens × {dimension}, {megabytes(size)}")
        lines += [f"  {heads:,} head queries, read by the whole model"] if heads else []
        lines += [] if agreement is None else [f"  {agreement_line(agreement)}"]
        tables[task] = {"path": str(file), "rows": count, "dimension": dimension, "bytes": size}
        tables[task] |= {"head_queries": heads, "agreement": agreement}
    return Summary(str(recipe.work / "tables"), lines, {"stage": "table", "tables": tables})


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
