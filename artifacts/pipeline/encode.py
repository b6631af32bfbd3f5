"""Encode a corpus with the full LLM: dense and sparse vectors of every document, in resumable shards."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.software import software
from lightretriever.artifacts.pipeline.sparse_head import quantise_top_k, sparse_weights
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["EncodeSettings", "encode_corpus", "encode_documents", "length_sorted_batches"]


@dataclass(frozen=True)
class EncodeSettings:
    """What decides a document's vectors, and how the work is cut.

    `max_length` tokens of a document, special tokens included; `top_k` sparse terms kept per document (None: all);
    `quantization` impacts per unit of weight; `batch_tokens` positions per forward pass, padding included (None: 2,048
    on a CPU, 32,768 on CUDA); `shard_size` documents per shard file.
    """

    max_length: int = 512
    top_k: int | None = 128
    quantization: int = 100
    batch_tokens: int | None = None
    shard_size: int = 512


def encode_corpus(backbone: Backbone, corpus: Corpus, settings: EncodeSettings, work: Path) -> ShardStore:
    """Encode every document of `corpus` into the shards of `work`; shards that are there are kept.

    Killed at any point and called again, it loses at most one shard and ends with byte-identical files: a
    shard is a fixed run of documents, batched by itself. Raises ResumeError when `work` was begun with another corpus,
    model or setting, and CorpusError for a corpus without documents.
    """
    total = corpus.count()
    store = ShardStore.begin(work, _plan(backbone, corpus, settings))
    count = 0
    with torch.inference_mode(), ProgressBar("encode", total=total, unit="documents") as progress:
        for count, documents in enumerate(_chunks(corpus, settings.shard_size), start=1):
            if store.has(count - 1):
                progress.skip(len(documents))
                continue
            store.write(count - 1, encode_documents(backbone, documents, settings, progress))
    store.finish(count)
    return store


def encode_documents(
    backbone: Backbone, documents: list[Document], settings: EncodeSettings, progress: ProgressBar | None = None
) -> EncodedShard:
    """Encode a list of documents. The longest are batched first, so that a batch too large fails at once."""
    room = settings.max_length - len(backbone.prefix()) - 1
    # Tokens are far shorter than 64 characters on average, so this cuts only what max_length would cut anyway, and a
    # document of many megabytes isn't tokenised to its end.
    texts = [document.full_text[: 64 * settings.max_length] for document in documents]
    encoded = backbone.tokenizer.encode_batch(texts)
    sequences = [backbone.frame(ids[:room].tolist()) for ids in encoded]
    dense = np.empty((len(documents), backbone.hidden_size), dtype=np.float16)
    sparse: list[Any] = [None] * len(documents)
    batch_tokens = settings.batch_tokens or (32_768 if backbone.device.type == "cuda" else 2_048)
    for batch in length_sorted_batches(sequences, batch_tokens):
        hidden, lengths = _last_hidden_states(backbone, [sequences[index] for index in batch])
        ends = hidden[torch.arange(len(batch), device=hidden.device), lengths - 1].float()
        dense[batch] = torch.nn.functional.normalize(ends, dim=1).cpu().numpy().astype(np.float16)
        weights = sparse_weights(hidden, backbone.head, lengths, backbone.thresholds)
        rows = quantise_top_k(weights, settings.top_k, settings.quantization)
        for index, row in zip(batch, rows, strict=True):
            sparse[index] = row
        if progress is not None:
            progress.advance(len(batch))
    if not np.isfinite(dense).all():
        bad = documents[int(np.flatnonzero(~np.isfinite(dense).all(axis=1))[0])]
        raise ModelError(f'Document "{bad.id}" has a vector that is not finite.', remedy="Set model.dtype to float32.")
    indptr = np.concatenate([[0], np.cumsum([len(terms) for terms, _ in sparse])]).astype(np.int64)
    terms, impacts = (np.concatenate([row[part] for row in sparse]) for part in (0, 1))
    return EncodedShard([document.id for document in documents], dense, indptr, terms, impacts)


def _last_hidden_states(backbone: Backbone, sequences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded forward pass: (B, T, H) states and (B,) lengths.

    Attention is causal, so no real position ever sees the padding behind it and no mask is needed.
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    ids = torch.full((len(sequences), int(lengths.max())), backbone.eos_id)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    states: torch.Tensor = backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)[0]
    return states, lengths.to(backbone.device)


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


def _chunks(corpus: Corpus, size: int) -> Iterator[list[Document]]:
    documents = iter(corpus)
    while chunk := list(islice(documents, size)):
        yield chunk


def _plan(backbone: Backbone, corpus: Corpus, settings: EncodeSettings) -> dict[str, Any]:
    return {
        "corpus_sha256": corpus.sha256(),
        "limit": corpus.limit,
        "skip_bad": corpus.skip_bad,
        "model": backbone.fingerprint,
        "device": backbone.device.type,
        "software": software(),
        **asdict(settings),
    }
