"""The pipeline's stages that need the LLM, each a function of the recipe and its work directory.

WORK/model/              a GGUF model, converted (only then)
WORK/backbone.json       what the later stages need to know of the model
WORK/tokenizer.json      its tokenizer
WORK/idf.npy             what tokens of a query weigh (V,) float32, where the recipe has IDF weights
WORK/tables/TASK/        token table of a task, (V, H) float32
WORK/encode/             encoded documents in shards
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.corpus.beir import Skipped
from lightretriever.artifacts.errors import BundleError, ModelError, RecipeError
from lightretriever.artifacts.files.arrays import write_array
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.files.workdir import check_plan, write_atomically
from lightretriever.artifacts.pipeline.encode import encode_corpus
from lightretriever.artifacts.pipeline.model import Backbone, load_model
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.table import make_table
from lightretriever.artifacts.pipeline.weights import adapter_file, adapter_settings
from lightretriever.artifacts.tokens.idf import IDF_FILE, idf_sha256, load_idf

__all__ = ["load_recipe_backbone", "run_encode", "run_tables"]


def load_recipe_backbone(recipe: Recipe) -> Backbone:
    """Load the recipe's model and record in the work directory what the bundle will hold and say of it.

    Raises ResumeError, before anything is written, when the directory was begun with another model, adapter, tokenizer,
    number type or IDF weights, and RecipeError when the model can't give the dimension or the length that the recipe
    asks for, or the weights don't fit it.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model, dimension = recipe.model, recipe.index.dimension
    backbone = load_model(model, recipe.work, lowercase=recipe.encode.lowercase)
    if dimension is not None and dimension > backbone.vector_size:
        raise RecipeError(
            f"index.dimension is {dimension}, but the vectors of {backbone.name} have {backbone.vector_size} values.",
            remedy="Lower index.dimension, or leave it out.",
        )
    if backbone.max_positions is not None and recipe.encode.max_length > backbone.max_positions:
        raise RecipeError(
            f"encode.max_length is {recipe.encode.max_length}, but {backbone.name} reads {backbone.max_positions} "
            "positions.",
            remedy="Lower encode.max_length.",
        )
    idf = _recipe_idf(recipe, backbone.vocab_size)
    facts = {
        "name": backbone.name,
        "adapter": None if model.adapter is None else Path(model.adapter).name,
        "fingerprint": backbone.fingerprint,
        "hidden_size": backbone.vector_size,
        "lowercase": recipe.encode.lowercase,
        "idf": None if idf is None else idf_sha256(idf),
    }
    check_plan(recipe.work / "backbone.json", facts)
    write_atomically(recipe.work / "tokenizer.json", backbone.tokenizer_json)
    if idf is not None:
        write_array(recipe.work / IDF_FILE, idf)
    return backbone


def run_tables(recipe: Recipe, backbone: Backbone) -> dict[str, Path]:
    """Make the token table of every task; task name → file of shape (V, H) float32.

    An adapter trained with `idf_rows` gets its rows times its own IDF, whatever the sparse side's query weights are.
    """
    adapter, weights = recipe.model.adapter, None
    if adapter is not None and adapter_settings(adapter).get("idf_rows"):
        file = adapter_file(adapter, IDF_FILE)
        if not file.is_file():
            raise ModelError(f"{adapter}: was trained with idf_rows, but has no {IDF_FILE}.", remedy="Fetch it again.")
        weights = load_idf(file, backbone.vocab_size)
    return {
        task: make_table(backbone, instruction, recipe.work / "tables" / task, weights)
        for task, instruction in recipe.tasks.items()
    }


def run_encode(recipe: Recipe, backbone: Backbone) -> tuple[ShardStore, Skipped]:
    """Encode the recipe's corpus. Also returns the corpus lines that were skipped."""
    corpus = recipe.corpus.open()
    return encode_corpus(backbone, corpus, recipe.encode, recipe.work / "encode"), corpus.skipped


def _recipe_idf(recipe: Recipe, vocab_size: int) -> npt.NDArray[np.float32] | None:
    """The IDF weights that the recipe asks for, or that its adapter brings; those of the corpus are left to `index`."""
    wanted, adapter = recipe.model.idf, recipe.model.adapter
    if wanted in ("auto", "corpus"):
        counts = adapter is None or adapter_settings(adapter).get("query_weights") == "count"
        if adapter is None or counts or not (file := adapter_file(adapter, IDF_FILE)).is_file():
            return None
        wanted = str(file)
    if wanted is None:
        return None
    try:
        return load_idf(Path(wanted), vocab_size)
    except BundleError as error:
        raise RecipeError(f"model.idf: {error.message}", remedy=error.remedy) from error
