"""The pipeline's stages that need the LLM, each a function of the recipe and its work directory.

WORK/model/              a GGUF model, converted (only then)
WORK/backbone.json       what the later stages need to know of the model
WORK/tokenizer/          tokenizer.json
WORK/tables/TASK/        token table of a task, (V, H) float32
WORK/encode/             encoded documents in shards
"""

import json
import os
from pathlib import Path

import torch

from artifacts.corpus import Corpus
from artifacts.pipeline.encode import EncodeSettings, encode_corpus
from artifacts.pipeline.model import Backbone, load_backbone
from artifacts.pipeline.table import TableJob, make_table
from artifacts.recipe import Recipe
from artifacts.shards import ShardStore, write_atomically

__all__ = ["load_recipe_backbone", "run_encode", "run_tables"]


def load_recipe_backbone(recipe: Recipe) -> Backbone:
    """Load the recipe's model and record in `WORK/backbone.json` what the bundle will say about it."""
    torch.set_num_threads(os.cpu_count() or 1)
    model = recipe.model
    recipe.work.mkdir(parents=True, exist_ok=True)
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
    facts = {
        "name": model.name or backbone.name,
        "sha256": backbone.fingerprint,
        "adapter": None if model.adapter is None else Path(model.adapter).name,
        "hidden_size": backbone.hidden_size,
        "trained": model.trained,
        "licence": model.licence,
    }
    write_atomically(recipe.work / "backbone.json", json.dumps(facts, indent=1).encode() + b"\n")
    return backbone


def run_tables(recipe: Recipe, backbone: Backbone) -> dict[str, Path]:
    """Make the token table of every task; task name → file of shape (V, H) float32."""
    return {
        task: make_table(backbone, TableJob(instruction), recipe.work / "tables" / task)
        for task, instruction in recipe.tasks.items()
    }


def run_encode(recipe: Recipe, backbone: Backbone) -> ShardStore:
    """Encode the recipe's corpus."""
    corpus = Corpus(Path(recipe.corpus.path), skip_bad=recipe.corpus.skip_bad, limit=recipe.corpus.limit)
    settings = EncodeSettings(
        max_length=recipe.encode.max_length,
        top_k=recipe.encode.top_k,
        batch_tokens=recipe.encode.batch_tokens,
        shard_size=recipe.encode.shard_size,
    )
    return encode_corpus(backbone, corpus, settings, recipe.work / "encode")
