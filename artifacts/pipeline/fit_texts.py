"""The stages of a recipe with `distil`: an existing bi-encoder, its document vectors, a token table for its queries.

WORK/backbone.json       what the later stages need to know of the bi-encoder
WORK/tokenizer.json      its tokenizer
WORK/encode/             document vectors, given or encoded, and BM25 impacts, in shards
WORK/tables/TASK/        the distilled token table of a task, (V, H) float32, and training.json: how it was trained
WORK/tables/TASK/teacher/  the encoder's vectors of the texts that were trained on
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.corpus.beir import Document, Skipped, file_sha256, find_file, read_queries
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.files.workdir import check_plan, write_atomically
from lightretriever.artifacts.pipeline.biencoder import BiEncoder, load_biencoder
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Statistics, count_tokens
from lightretriever.artifacts.pipeline.fit import Bags, TrainedTable, initial_rows, train_table, write_table
from lightretriever.artifacts.pipeline.given_vectors import encode_frozen
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, Recipe
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["corpus_sentences", "load_recipe_backbone", "query_texts", "run_encode", "run_tables", "teacher_vectors"]

_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|\n+|(?<=[。！？])")
_SHORTEST = 4
"""Words of a sentence worth training on; a text in a script without spaces counts its characters."""

_PART = 2048


def load_recipe_backbone(recipe: Recipe) -> BiEncoder:
    """Load the recipe's bi-encoder and record in the work directory what the bundle will hold and say of it.

    Raises ModelError when it can't be loaded or its tokenizer can't serve queries, and ResumeError, before anything is
    written, when the directory was begun with another model, tokenizer or number type.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = recipe.model
    encoder = load_biencoder(model.path, dtype=model.dtype, device=model.device, lowercase=recipe.encode.lowercase)
    dimension = recipe.index.dimension
    if dimension is not None and dimension > encoder.hidden_size:
        raise RecipeError(
            f"index.dimension is {dimension}, but the vectors of {encoder.name} have {encoder.hidden_size} values.",
            remedy="Lower index.dimension, or leave it out.",
        )
    facts = {
        "name": encoder.name,
        "adapter": None,
        "fingerprint": encoder.fingerprint,
        "hidden_size": encoder.hidden_size,
        "lowercase": recipe.encode.lowercase,
        "idf": None,
    }
    check_plan(recipe.work / "backbone.json", facts)
    write_atomically(recipe.work / "tokenizer.json", encoder.tokenizer_json)
    return encoder


def run_encode(recipe: Recipe, encoder: BiEncoder) -> tuple[ShardStore, Skipped]:
    """Put the documents' vectors and BM25 impacts into shards. Also returns the corpus lines that were skipped."""
    corpus = recipe.corpus.open()
    return encode_frozen(encoder, corpus, recipe.encode, _distil(recipe), recipe.work / "encode"), corpus.skipped


def run_tables(recipe: Recipe, encoder: BiEncoder) -> dict[str, Path]:
    """Distil the token table of every task; task name → file of shape (V, H) float32. Encodes the corpus first.

    A table that is there, made from the same inputs, is kept. Raises ResumeError when the work directory was begun with
    other inputs, and RecipeError when there is too little to train on.
    """
    store, _ = run_encode(recipe, encoder)
    tables = {task: recipe.work / "tables" / task / "table.npy" for task in recipe.tasks}
    for task, file in tables.items():
        check_plan(file.parent / "plan.json", _plan(recipe, encoder, store, task))
    if all(file.is_file() for file in tables.values()):
        return tables
    vectors = np.concatenate([shard.dense for shard in store])
    documents = [document.full_text for document in recipe.corpus.open()]
    tokens = _tokens(encoder, documents)
    statistics = count_tokens(tokens, encoder.vocab_size)
    texts = _texts(recipe)
    encoder.check_tokens([*texts[:1000], *documents[:1000]])
    for task, file in tables.items():
        if not file.is_file():
            trained = _train(recipe, encoder, task, (texts, tokens, vectors, statistics))
            write_table(file, trained)
    return tables


_Material = tuple[list[str], list[npt.NDArray[np.int32]], npt.NDArray[np.float16], Bm25Statistics]


def _train(recipe: Recipe, encoder: BiEncoder, task: str, material: _Material) -> TrainedTable:
    """Train on documents, sentences and queries; a share of the latter two, or else of the documents, is held out."""
    texts, documents, vectors, statistics = material
    distil, instruction = _distil(recipe), recipe.tasks[task]
    targets = teacher_vectors(encoder, texts, instruction, recipe.work / "tables" / task / "teacher")
    bags = _tokens(encoder, texts)
    random = np.random.default_rng(distil.seed)  # what is held out is the end of these
    read = random.permutation([row for row, ids in enumerate(documents) if len(ids)]).astype(np.int64)
    order = random.permutation([row for row, ids in enumerate(bags) if len(ids)]).astype(np.int64)
    held_out = min(distil.held_out, (len(order) or len(read)) // 10)
    states = encoder.token_states(instruction)
    return train_table(
        initial_rows(states, statistics),
        Bags.of([*(documents[row] for row in read), *(bags[row] for row in order)]),
        np.concatenate([vectors[read], targets[order]]),
        vectors,
        distil,
        held_out,
    )


def _texts(recipe: Recipe) -> list[str]:
    """Queries and sentences, each once."""
    distil = _distil(recipe)
    texts = query_texts(distil.queries, distil.sample, distil.seed)
    if distil.sentences:
        limit = None if distil.sentences is True else distil.sentences
        texts += corpus_sentences(recipe.corpus.open(), limit, distil.seed)
    return list(dict.fromkeys(texts))


def _tokens(encoder: BiEncoder, texts: list[str]) -> list[npt.NDArray[np.int32]]:
    """Token ids (n,) of every text, as far as the encoder itself reads."""
    longest = encoder.longest
    return [ids[:longest] for ids in encoder.tokenizer.encode_batch(texts)]


def _plan(recipe: Recipe, encoder: BiEncoder, store: ShardStore, task: str) -> dict[str, Any]:
    distil = _distil(recipe)
    return {
        "model": encoder.fingerprint,
        "instruction": recipe.tasks[task],
        "documents": {key: store.plan[key] for key in ("corpus_sha256", "limit", "skip_bad", "vectors_sha256")},
        "queries": [file_sha256(find_file(path, "queries")) for path in distil.queries],
        "settings": distil.model_dump(mode="json", exclude={"vectors", "ids", "queries"}),
        "device": encoder.device.type,
        "software": software(),
    }


def _distil(recipe: Recipe) -> DistilTableRecipe:
    if recipe.distil is None:
        raise RecipeError("distil: the recipe has no such section.", remedy="See docs/pipeline.md.")
    return recipe.distil


def query_texts(paths: Sequence[Path], sample: int | None, seed: int) -> list[str]:
    """Queries of BEIR files or folders, each once: at most `sample` of each file (None: all), drawn by `seed`.

    Judgments are never read. Raises CorpusError for a file that can't be read.
    """
    texts: list[str] = []
    for number, path in enumerate(paths):
        texts += _draw(list(dict.fromkeys(read_queries(path).values())), sample, (seed, number))
    return list(dict.fromkeys(texts))


def corpus_sentences(documents: Iterable[Document], limit: int | None, seed: int) -> list[str]:
    """Titles and sentences of a corpus, each once, in its order: at most `limit` (None: all), drawn by `seed`."""
    found: dict[str, None] = {}
    for document in documents:
        for part in (document.title, *_SENTENCE_END.split(document.text)):
            sentence = " ".join(part.split())
            if len(sentence.split()) >= _SHORTEST or (" " not in sentence and len(sentence) >= 2 * _SHORTEST):
                found.setdefault(sentence)
    return _draw(list(found), limit, (seed,))


def teacher_vectors(
    encoder: BiEncoder, texts: Sequence[str], instruction: str, folder: Path
) -> npt.NDArray[np.float16]:
    """What the whole encoder makes of `texts` as queries: (n, H) float16, L2-normalised before rounding.

    They are kept in parts below `folder`, so that a stopped run goes on where it was. Raises ResumeError when the
    folder was begun with other texts, another encoder or another instruction, or a part can't be read.
    """
    digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    plan = {"model": encoder.fingerprint, "instruction": instruction, "texts": len(texts), "sha256": digest}
    check_plan(folder / "plan.json", {**plan, "device": encoder.device.type, "software": software()})
    parts = []
    with ProgressBar("teacher", total=len(texts), unit="texts") as progress:
        for start in range(0, len(texts), _PART):
            file, chunk = folder / f"part-{start:08d}.npy", texts[start : start + _PART]
            if file.is_file():
                progress.skip(len(chunk))
            else:
                vectors = encoder.encode_queries(chunk, instruction).astype(np.float16)
                write_array(file, vectors)
                progress.advance(len(chunk))
            parts.append(read_array(file))
    return np.concatenate(parts) if parts else np.zeros((0, encoder.hidden_size), dtype=np.float16)


def _draw(texts: list[str], limit: int | None, seed: tuple[int, ...]) -> list[str]:
    if limit is None or len(texts) <= limit:
        return texts
    kept = np.sort(np.random.default_rng(seed).choice(len(texts), size=limit, replace=False))
    return [texts[index] for index in kept]
