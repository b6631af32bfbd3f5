"""Train a language model's token table on the encoded corpus, without the model.

Every document is a text whose vector by the whole model is known: it was encoded. So the rows of the table are trained
to make of a document's tokens what the model made of the document (the loss is that of `artifacts.pipeline.fit`).

    q(d) = normalise(mean_i E[t_i]) over the tokens of d,  y = d's own vector

Nothing but the shards, the tokenizer and the table is read; no query, and no judgment.

WORK/tables/TASK/refined-D/   table.npy (V, D) float32, plan.json, training.json; D is the bundle's dimension
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import RecipeError, ResumeError
from lightretriever.artifacts.files.arrays import read_array
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.files.workdir import check_plan, read_json
from lightretriever.artifacts.pipeline.build import next_document, no_document_left, refined_folder
from lightretriever.artifacts.pipeline.fit import Bags, TrainedTable, train_table, write_table
from lightretriever.artifacts.pipeline.recipe import Recipe, RefineRecipe
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["run_refine"]


def run_refine(recipe: Recipe) -> dict[str, Path]:
    """Refine the token table of every task; task name → file of shape (V, D) float32. What is there is kept.

    Raises ResumeError when tables or shards are missing, or the work directory was begun with other inputs, and
    RecipeError when the corpus is too small to train on.
    """
    settings = recipe.refine
    if settings is None:
        raise RecipeError("refine: the recipe has no such section.", remedy="Add it: `refine: {}` takes the defaults.")
    tables = {task: refined_folder(recipe, task) / "table.npy" for task in recipe.tasks}
    for task, file in tables.items():
        check_plan(file.parent / "plan.json", _plan(recipe, settings, task))
    todo = [task for task, file in tables.items() if not file.is_file()]
    if todo:
        bags, vectors = _documents(recipe, settings)
        for task in todo:
            rows = read_array(recipe.work / "tables" / task / "table.npy")[:, : vectors.shape[1]]
            write_table(tables[task], _train(rows, bags, vectors, settings))
    return tables


def _train(
    rows: npt.NDArray[np.float32],
    bags: list[npt.NDArray[np.int32]],
    vectors: npt.NDArray[np.float16],
    settings: RefineRecipe,
) -> TrainedTable:
    """Train from the model's own rows, scaled so that those of the corpus' tokens have length 1 on average."""
    seen = np.unique(np.concatenate(bags))
    scale = max(float(np.linalg.norm(rows[seen], axis=1).mean()), 1e-12)
    initial = np.ascontiguousarray(rows / scale, dtype=np.float32)
    return train_table(initial, Bags.of(bags), vectors, vectors, settings, min(settings.held_out, len(bags) // 10))


def _documents(recipe: Recipe, settings: RefineRecipe) -> tuple[list[npt.NDArray[np.int32]], npt.NDArray[np.float16]]:
    """Token ids (n_i,) of n drawn documents, as far as the model read them, and their unit vectors (n, D) float16.

    Raises ResumeError where the corpus is not the one that was encoded.
    """
    facts = read_json(recipe.work / "backbone.json")
    tokenizer = TextTokenizer.from_file(recipe.work / "tokenizer.json", lowercase=facts["lowercase"])
    shards = list(ShardStore(recipe.work / "encode"))
    vectors = np.concatenate([shard.dense for shard in shards])
    ids = [document_id for shard in shards for document_id in shard.ids]
    drawn = np.random.default_rng(settings.seed).permutation(len(vectors))[: settings.documents]
    places = {int(row): place for place, row in enumerate(drawn)}
    texts = [""] * len(drawn)
    documents = iter(recipe.corpus.open())
    for row, encoded in enumerate(ids):
        document = next_document(documents, encoded)
        if row in places:
            texts[places[row]] = document.full_text
    no_document_left(documents)
    bags = [tokens[: recipe.encode.max_length] for tokens in tokenizer.encode_batch(texts)]
    kept = [place for place, tokens in enumerate(bags) if len(tokens)]
    cut = vectors[drawn[kept], : recipe.index.dimension].astype(np.float32)
    unit = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
    return [bags[place] for place in kept], unit.astype(np.float16)


def _plan(recipe: Recipe, settings: RefineRecipe, task: str) -> dict[str, Any]:
    encoded = read_json(recipe.work / "encode" / "plan.json")
    if encoded["corpus_sha256"] != (now := recipe.corpus.open().sha256()):
        raise ResumeError(
            f"{recipe.work}: the corpus has the SHA-256 {now} now, {encoded['corpus_sha256']} when it was encoded.",
            remedy="Run `encode` again with this recipe in another work directory.",
        )
    return {
        "table": read_json(recipe.work / "tables" / task / "plan.json"),
        "documents": hashlib.sha256(json.dumps(encoded, sort_keys=True).encode()).hexdigest(),
        "settings": settings.model_dump(mode="json"),
        "software": software(),
    }
