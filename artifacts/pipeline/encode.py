"""Encode a corpus with the full LLM: dense and sparse vectors of every document, in resumable shards."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.sparse_head import ImpactRow, quantise_top_k, sparse_weights
from lightretriever.artifacts.pipeline.states import PackedStates
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar

__all__ = [
    "QUANTIZATION",
    "encode_corpus",
    "encode_documents",
    "encoded_shard",
    "length_sorted_batches",
    "write_shards",
]


T = TypeVar("T")

QUANTIZATION: Final = 100
"""Impacts per unit of weight."""


def encode_corpus(backbone: Backbone, corpus: Corpus, settings: EncodeRecipe, work: Path) -> ShardStore:
    """Encode every document of `corpus` into the shards of `work`; shards that are there are kept.

    Killed at any point and called again, it loses at most one shard and ends with byte-identical files: a
    shard is a fixed run of documents, batched by itself. Raises ResumeError when `work` was begun with another corpus,
    model or setting, and CorpusError for a corpus without documents.
    """
    total = corpus.count()
    store = ShardStore.begin(work, _plan(backbone, corpus, settings))
    with torch.inference_mode(), ProgressBar("encode", total=total, unit="documents") as progress:

        def encode_part(_: int, part: list[Document]) -> EncodedShard:
            return encode_documents(backbone, part, settings, progress)

        write_shards(store, corpus, settings.shard_size, encode_part, progress)
    return store


def write_shards(
    store: ShardStore,
    items: Iterable[T],
    size: int,
    encode: Callable[[int, list[T]], EncodedShard],
    progress: ProgressBar,
) -> None:
    """Encode items in shards of `size` each, all but those that are there.

    `encode` also gets the place of the first item, and advances the progress.
    """
    number, rest = 0, iter(items)
    while part := list(islice(rest, size)):
        if store.has(number):
            progress.skip(len(part))
        else:
            store.write(number, encode(number * size, part))
        number += 1
    store.finish(number)


def encode_documents(
    backbone: Backbone, documents: list[Document], settings: EncodeRecipe, progress: ProgressBar | None = None
) -> EncodedShard:
    """Encode a list of documents. The longest are batched first, so that a batch too large fails at once."""
    sequences = backbone.document_ids([document.full_text for document in documents], settings.max_length)
    dense = np.empty((len(documents), backbone.vector_size), dtype=np.float16)
    sparse: list[Any] = [None] * len(documents)
    batch_tokens = settings.batch_tokens or (32_768 if backbone.device.type == "cuda" else 2_048)
    for batch in length_sorted_batches(sequences, batch_tokens):
        states = _last_hidden_states(backbone, [sequences[index] for index in batch])
        dense[batch] = torch.nn.functional.normalize(states.dense(backbone).float(), dim=1).cpu().numpy()
        weights = sparse_weights(states.hidden, backbone.head, backbone.sparse_spans(states.spans), backbone.thresholds)
        rows = quantise_top_k(weights, settings.top_k, QUANTIZATION)
        for index, row in zip(batch, rows, strict=True):
            sparse[index] = row
        if progress is not None:
            progress.advance(len(batch))
    if not np.isfinite(dense).all():
        bad = documents[int(np.flatnonzero(~np.isfinite(dense).all(axis=1))[0])]
        raise ModelError(f'Document "{bad.id}" has a vector that is not finite.', remedy="Set model.dtype to float32.")
    return encoded_shard([document.id for document in documents], dense, sparse)


def encoded_shard(ids: list[str], dense: npt.NDArray[np.floating], sparse: Sequence[ImpactRow]) -> EncodedShard:
    """A shard of n documents: `dense` (n, H), stored as float16, and n sparse rows, or none for no sparse side."""
    lengths = [len(terms) for terms, _ in sparse] or [0] * len(ids)
    return EncodedShard(
        ids,
        dense.astype(np.float16, copy=False),
        np.cumsum([0, *lengths]).astype(np.int64),
        np.concatenate([np.empty(0, np.int32), *(terms for terms, _ in sparse)]),
        np.concatenate([np.empty(0, np.uint16), *(impacts for _, impacts in sparse)]),
    )


def _last_hidden_states(backbone: Backbone, sequences: list[list[int]]) -> PackedStates:
    """Right-padded forward pass, one text a row.

    Attention is causal, so no real position ever sees the padding behind it and no mask is needed.
    """
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), backbone.eos_id)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    states: torch.Tensor = backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)[0]
    spans = [(row * width, row * width + len(sequence)) for row, sequence in enumerate(sequences)]
    return PackedStates(states.flatten(0, 1), spans)


def length_sorted_batches(sequences: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of `sequences` in batches of at most `batch_tokens` padded positions (at least one sequence)."""
    order = sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(sequences[batch[0]]) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _plan(backbone: Backbone, corpus: Corpus, settings: EncodeRecipe) -> dict[str, Any]:
    return {
        "corpus_sha256": corpus.sha256(),
        "limit": corpus.limit,
        "skip_bad": corpus.skip_bad,
        "model": backbone.fingerprint,
        "device": backbone.device.type,
        "software": software(),
        "quantization": QUANTIZATION,
        **settings.model_dump(exclude={"lowercase"}),
    }
