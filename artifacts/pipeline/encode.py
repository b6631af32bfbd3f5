"""Encode a corpus: dense vectors and sparse impacts of every document, in resumable shards."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from lightretriever.artifacts.corpus.beir import Corpus, Document, file_sha256
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder
from lightretriever.artifacts.pipeline.given_vectors import GivenVectors
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["QUANTIZATION", "encode_corpus", "encoded_shard", "length_sorted_batches", "write_shards"]

T = TypeVar("T")

QUANTIZATION: Final = 100
"""Impacts per unit of weight."""


def encode_corpus(
    encoder: Encoder,
    corpus: Corpus,
    settings: EncodeRecipe,
    work: Path,
    *,
    vectors: Path | None = None,
    ids: Path | None = None,
) -> ShardStore:
    """Encode every document of `corpus` into the shards of `work`; shards that are there are kept.

    Dense vectors are the encoder's, or those of the file `vectors`, in the order of `ids` (see `GivenVectors`).
    Impacts are the encoder's, BM25 over its sparse side's tokens, or both, as `encoder.impacts` says. Killed at any
    point and called again, it loses at most one shard and ends with byte-identical files: a shard is a fixed run of
    documents, batched by itself.

    Raises ResumeError when `work` was begun with another corpus, model or setting, CorpusError for a corpus without
    documents or tokens, and RecipeError when the given vectors don't fit corpus or encoder.
    """
    store = ShardStore.begin(work, _plan(encoder, corpus, settings, vectors))
    total = corpus.count()
    given = None if vectors is None else GivenVectors.open(vectors, ids, encoder, corpus, total)
    bm25 = None
    if encoder.impacts != "learned":
        texts = (document.full_text for document in corpus)
        bm25 = Bm25Encoder.of(texts, encoder.sparse_tokenizer, QUANTIZATION, settings.top_k, encoder.bm25_factor)
    with ProgressBar("encode", total=total, unit="documents") as progress:

        def encode_part(first: int, part: list[Document]) -> EncodedShard:
            texts = [document.full_text for document in part]
            if given is None:
                made = encoder.encode_documents(texts, progress=progress)
            else:
                made = Encoded(given.of_documents(first, len(part)), encoder.encode_impacts(texts))
                progress.advance(len(part))
            if bm25 is not None:
                made = replace(made, sparse=bm25.impacts(texts, made.sparse))
            return encoded_shard([document.id for document in part], made, cut=encoder.count_cut(texts))

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
    store.finish(number, skipped=items.skipped.count if isinstance(items, Corpus) else 0)


def encoded_shard(ids: list[str], made: Encoded, *, cut: int = 0) -> EncodedShard:
    """A shard of n documents, of which `cut` are longer than the model reads; their vectors are stored as float16.
    Raises ModelError for one that is not finite."""
    dense, sparse = made.dense.astype(np.float16), made.sparse or []
    if not np.isfinite(dense).all():
        bad = ids[int(np.flatnonzero(~np.isfinite(dense).all(axis=1))[0])]
        raise ModelError(f'Document "{bad}" has a vector that is not finite.', remedy="Set model.dtype to float32.")
    return EncodedShard(
        ids,
        dense,
        np.cumsum([0, *([len(terms) for terms, _ in sparse] or [0] * len(ids))]).astype(np.int64),
        np.concatenate([np.empty(0, np.int32), *(terms for terms, _ in sparse)]),
        np.concatenate([np.empty(0, np.uint16), *(impacts for _, impacts in sparse)]),
        cut,
    )


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


def _plan(encoder: Encoder, corpus: Corpus, settings: EncodeRecipe, vectors: Path | None) -> dict[str, Any]:
    plan = {
        "corpus_sha256": corpus.sha256(),
        "limit": corpus.limit,
        "skip_bad": corpus.skip_bad,
        "model": encoder.fingerprint,
        "device": encoder.device.type,
        "software": software(),
        "quantization": QUANTIZATION,
        **settings.model_dump(include={"max_length", "top_k", "shard_size"}),
    }
    if encoder.impacts != "learned":
        # Earlier shards have other terms: the unknown token, and the first word as it stands at the start of a text.
        plan |= {"impacts": encoder.impacts, "terms": "those of queries"}
        plan["vectors_sha256"] = None
    if vectors is not None:
        plan["vectors_sha256"] = file_sha256(vectors)
    if encoder.impacts == "learned" or settings.batch_tokens is not None:
        plan["batch_tokens"] = settings.batch_tokens
    return plan if encoder.bm25_factor is None else plan | {"bm25_factor": encoder.bm25_factor}
