"""A bundle's dense leg as a sentence-transformers model, which makes the vectors for another vector store.

It is a Router: queries are means of token rows (`StaticEmbedding`), documents are read by the encoder.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding

from lightretriever.artifacts.bundle.manifest import check_outside
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.atomic import check_target, new_folder
from lightretriever.artifacts.pipeline.loading import loading, route
from lightretriever.artifacts.pipeline.recipe import BESIDE, MODULES_FILE
from lightretriever.artifacts.pipeline.sentence_models import BiEncoder, load_biencoder
from lightretriever.artifacts.tokens.portable import PortableTokenizer


def export_sentence_transformer(
    bundle: Bundle, target: Path, *, task: str, model: str | None = None, overwrite: bool = False
) -> list[str]:
    """Write the folder `target`, which `SentenceTransformer` reads, and return warnings.

    `encode_query` gives vectors (D,) float32 of length 1, those of the service for `task`, and zeros for a text without
    a known token. `encode_document` gives those of the bi-encoder `model`, cut to D values and normalised; without
    `model` it raises ValueError. A warning says that `model` is not the very one that read the bundle's documents.

    Raises BundleError for a bundle without a dense leg, an unknown task, a tokenizer that can't be exported, and a
    `target` that is in the way; ModelError for a model that can't be loaded or has vectors of fewer values.
    """
    check_outside(target)
    check_target(target, overwrite=overwrite, marker=MODULES_FILE)
    prompts = {"query": "", "document": ""}
    routes: dict[str, list[Any]] = {"query": [_static(bundle, task), Normalize()]}
    warnings: list[str] = []
    if model is not None:
        encoder, manifest = _encoder(bundle, model), bundle.manifest
        if encoder.fingerprint != manifest.model.sha256:
            warnings = [
                f"The model {encoder.name} ({encoder.fingerprint[:12]}) is not the very one of the bundle's documents, "
                f"{manifest.model.name} ({str(manifest.model.sha256)[:12]}): other weights, settings or number type."
            ]
        prompts["document"] = encoder.model.prompts["document"] or ""
        encoder.model.truncate_dim = None  # which is done behind the modules; the exported ones do it themselves
        size = int(encoder.model.get_embedding_dimension() or 0)
        routes["document"] = route(encoder.model, "document")
        if size != manifest.dimension:  # its first D values
            first = torch.eye(manifest.dimension, size)
            kept = Dense(size, len(first), bias=False, activation_function=torch.nn.Identity(), init_weight=first)
            routes["document"] += [kept]
        routes["document"] += [Normalize()]
    default = "query" if model is None else "document"
    exported = SentenceTransformer(
        modules=[Router(routes, default_route=default)], prompts=prompts, similarity_fn_name="cosine", device="cpu"
    )
    with (
        new_folder(target, overwrite=overwrite, marker=MODULES_FILE) as folder,
        loading(f"{target}: the model can't be saved"),
    ):
        exported.save(str(folder), create_model_card=False)
    return warnings


def _static(bundle: Bundle, task: str) -> StaticEmbedding:
    """The token table of a task, with rows of zeros for what stands for nothing."""
    table, tokenizer = bundle.table(task), bundle.tokenizer()
    content = (bundle.path / bundle.manifest.tokenizer.file).read_bytes()
    portable = PortableTokenizer.of(tokenizer, content)
    rows = np.zeros((portable.rows, table.shape[1]), dtype=np.float32)
    rows[: table.shape[0]] = table.rows(np.arange(table.shape[0]))
    rows[list(portable.nothing)] = 0
    return StaticEmbedding(portable.tokenizer, embedding_weights=rows)


def _encoder(bundle: Bundle, model: str) -> BiEncoder:
    """The bi-encoder that reads documents, in float32 on the CPU."""
    if BESIDE in model:
        raise ModelError(
            f"--model: {model!r} names several encoders, which sentence-transformers has no module for.",
            remedy="Leave --model out, which exports the queries alone.",
        )
    encoder = load_biencoder(model, dtype="float32", device="cpu", lowercase=bundle.manifest.tokenizer.lowercase)
    size, expected = encoder.hidden_size, bundle.manifest.model.hidden_size
    if size != expected:
        raise ModelError(
            f"--model: {model} gives vectors of {size} values, the encoder of the bundle's documents of {expected}.",
            remedy=f"Give the model that read the documents, {bundle.manifest.model.name}.",
        )
    return encoder
