"""The pipeline's stages that need the LLM, each a function of the recipe and its work directory.

WORK/model/              a GGUF model, converted (only then)
WORK/backbone.json       what the later stages need to know of the model
WORK/tokenizer.json      its tokenizer
WORK/tables/TASK/        token table of a task, (V, H) float32
WORK/encode/             encoded documents in shards
"""

import os
from pathlib import Path

import torch

from artifacts.corpus import Skipped
from artifacts.errors import RecipeError
from artifacts.pipeline.encode import EncodeSettings, encode_corpus
from artifacts.pipeline.model import Backbone, load_backbone
from artifacts.pipeline.table import TableJob, make_table
from artifacts.recipe import Recipe
from artifacts.shards import ShardStore
from artifacts.work import check_plan, write_atomically

__all__ = ["load_recipe_backbone", "run_encode", "run_tables"]


def load_recipe_backbone(recipe: Recipe) -> Backbone:
    """Load the recipe's model and record in the work directory what the bundle will hold and say of it.

    Raises ResumeError, before anything is written, when the directory was begun with another model, adapter, tokenizer
    or number type, and RecipeError when the model can't give the dimension or the length that the recipe asks for.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model, dimension = recipe.model, recipe.index.dimension
    backbone = load_backbone(
        model.path,
        work=recipe.work,
        adapter=model.adapter,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        dtype=model.dtype,
        device=model.device,
        lowercase=recipe.encode.lowercase,
    )
    if dimension is not None and dimension > backbone.hidden_size:
        raise RecipeError(
            f"index.dimension is {dimension}, but the hidden size of {backbone.name} is {backbone.hidden_size}.",
            remedy="Lower index.dimension, or leave it out.",
        )
    if backbone.max_positions is not None and recipe.encode.max_length > backbone.max_positions:
        raise RecipeError(
            f"encode.max_length is {recipe.encode.max_length}, but {backbone.name} reads {backbone.max_positions} "
            "positions.",
            remedy="Lower encode.max_length.",
        )
    facts = {
        "name": backbone.name,
        "adapter": None if model.adapter is None else Path(model.adapter).name,
        "fingerprint": backbone.fingerprint,
        "hidden_size": backbone.hidden_size,
        "lowercase": recipe.encode.lowercase,
    }
    check_plan(recipe.work / "backbone.json", facts)
    write_atomically(recipe.work / "tokenizer.json", backbone.tokenizer_json)
    return backbone


def run_tables(recipe: Recipe, backbone: Backbone) -> dict[str, Path]:
    """Make the token table of every task; task name → file of shape (V, H) float32."""
    return {
        task: make_table(backbone, TableJob(instruction), recipe.work / "tables" / task)
        for task, instruction in recipe.tasks.items()
    }


def run_encode(recipe: Recipe, backbone: Backbone) -> tuple[ShardStore, Skipped]:
    """Encode the recipe's corpus. Also returns the corpus lines that were skipped."""
    corpus = recipe.corpus.open()
    settings = EncodeSettings(
        max_length=recipe.encode.max_length,
        top_k=recipe.encode.top_k,
        batch_tokens=recipe.encode.batch_tokens,
        shard_size=recipe.encode.shard_size,
    )
    return encode_corpus(backbone, corpus, settings, recipe.work / "encode"), corpus.skipped
