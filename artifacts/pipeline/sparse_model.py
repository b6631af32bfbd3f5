"""A sentence-transformers SparseEncoder: what reads the documents for the sparse leg, beside a model for the dense one.

A masked language model with SPLADE pooling, or a Router with a route for queries. Where that route is a
`SparseStaticEmbedding`, as in OpenSearch's doc-v3 models, its weights are what the tokens of a query weigh; else each
weighs its count. The library counts a token once, however often a query has it; here it counts as often.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sentence_transformers
import torch
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoder import TextModel
from lightretriever.artifacts.pipeline.language_model import quantise_top_k
from lightretriever.artifacts.pipeline.loading import (
    cut_at_longest,
    library_class,
    loading,
    longer_than,
    module_folders,
    prompts_of,
    route,
    text_tokenizer,
)
from lightretriever.artifacts.pipeline.model import choose_device, choose_dtype, fingerprint, local_folder
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, ModelRecipe, name_of
from lightretriever.artifacts.pipeline.rows import ImpactRow

_BATCH = 32
_MIN_WEIGHT = np.float32(1e-6)


@dataclass(frozen=True)
class SparseModel(TextModel):
    """A SparseEncoder ready to encode.

    `weights` (V,) float32 are what the tokens of a query weigh, above 0; None where they weigh their count.
    """

    model: sentence_transformers.SparseEncoder
    settings: EncodeRecipe
    weights: Float32Array | None

    def encode_impacts(self, texts: Sequence[str]) -> list[ImpactRow]:
        """Impacts of documents, the highest `top_k` of each. Raises ModelError for weights that are not finite."""
        rows: list[ImpactRow] = []
        batch = 1 if self.one_by_one else _BATCH
        for start in range(0, len(texts), _BATCH):
            part = list(texts[start : start + _BATCH])
            weights = self.model.encode_document(
                part, batch_size=batch, convert_to_sparse_tensor=False, show_progress_bar=False
            )
            if not bool(torch.isfinite(weights).all()):
                raise ModelError(f"{self.name}: a weight is not finite.", remedy="Set sparse.dtype to float32.")
            rows += quantise_top_k(weights.float(), self.settings.top_k)
        return rows

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each document has more tokens than it reads, special ones included."""
        return longer_than(self.longest, route(self.model, "document")[0], texts)


def load_sparse_model(recipe: ModelRecipe, settings: EncodeRecipe) -> SparseModel:
    """Load a SparseEncoder, a Hugging Face id or a directory, in evaluation mode.

    No code that it brings along is run. Raises ModelError when it can't be loaded, has no fast tokenizer, another
    tokenizer for queries than for documents, or weights below 0 for queries.
    """
    path, target = recipe.path, choose_device(recipe.device)
    dtype = choose_dtype(recipe.dtype, target)
    with loading(f"{path}: the SparseEncoder can't be loaded", path):
        if (kind := library_class(path)) not in (None, "SparseEncoder"):
            raise ModelError(f"{path}: is no SparseEncoder, but a {kind}.", remedy="Name it as model.path.")
        model = sentence_transformers.SparseEncoder(
            path, device=str(target), trust_remote_code=False, model_kwargs={"dtype": dtype}
        )
        asked, read = (route(model, task)[0] for task in ("query", "document"))
        static = asked if isinstance(asked, SparseStaticEmbedding) else None
        theirs: Any = asked.tokenizer
        if theirs.get_vocab() != read.tokenizer.get_vocab():
            raise ModelError(
                f"{path}: queries and documents have different tokenizers, so their terms are others.",
                remedy="Fetch or save the model again.",
            )
        tokenizer, content = text_tokenizer(theirs, path, lowercase=settings.lowercase)
        size = model.encode_document(["a"], convert_to_sparse_tensor=False, show_progress_bar=False).shape[1]
        if tokenizer.vocab_size > size:
            raise ModelError(
                f"{path}: the tokenizer has {tokenizer.vocab_size} ids, but the model weighs {size} terms.",
                remedy="Use the tokenizer the model was trained with.",
            )
        stated = read.max_seq_length
        cut_at_longest(path, asked, read)
        weights = None if static is None else _positive(static.weight, tokenizer.vocab_size, path)
        digest = None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()
        kept = [] if model.max_active_dims is None else [f"max_active_dims {model.max_active_dims}"]
        parts = (tokenizer.sha256, stated, prompts_of(model), dtype, settings.lowercase, digest, *kept)
        return SparseModel(
            name=name_of(path),
            fingerprint=fingerprint(module_folders(local_folder(path)), *parts),
            tokenizer=tokenizer,
            tokenizer_json=content,
            device=model.device,
            longest=read.max_seq_length,
            model=model,
            settings=settings,
            weights=weights,
        )


def _positive(weight: torch.Tensor, vocab_size: int, path: str) -> Float32Array:
    """Weights (V,) of a query's tokens. Those of 0 become too small to matter, as a bundle has none of 0."""
    weights: Float32Array = weight.detach().float().cpu().numpy()[:vocab_size]
    bad = np.flatnonzero(~(weights >= 0) | np.isinf(weights))
    if len(bad):
        raise ModelError(
            f"{path}: token {bad[0]} of a query weighs {weights[bad[0]]:g}, expected a number from 0 on.",
            remedy="Fetch or save the model again.",
        )
    return np.maximum(weights, _MIN_WEIGHT)
