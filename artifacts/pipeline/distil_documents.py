"""The documents of a bi-encoder's bundle: its vectors, as an index already holds them, and BM25 impacts."""

from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.beir import Corpus, Document, file_sha256
from lightretriever.artifacts.corpus.lines import read_lines, read_text
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.files.arrays import UNREADABLE
from lightretriever.artifacts.files.shards import EncodedShard, ShardStore
from lightretriever.artifacts.pipeline.biencoder import BiEncoder
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Statistics, bm25_impacts, count_tokens
from lightretriever.artifacts.pipeline.encode import QUANTIZATION, encoded_shard, write_shards
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, EncodeRecipe
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["encode_frozen", "open_vectors"]

_PROBES = 16
_LEAST_COSINE = 0.9
"""Given vectors are checked against the encoder's own of a few documents; rounding and cutting cost far less."""


def encode_frozen(
    encoder: BiEncoder, corpus: Corpus, settings: EncodeRecipe, distil: DistilTableRecipe, work: Path
) -> ShardStore:
    """Write every document's vector and BM25 impacts into the shards of `work`; shards that are there are kept.

    Vectors are those of `distil.vectors`, or encoded here. Raises RecipeError when the given ones don't fit corpus or
    encoder, CorpusError for a document without a token, and ResumeError when `work` was begun with other inputs.
    """
    store = ShardStore.begin(work, _plan(encoder, corpus, settings, distil))
    total = corpus.count()
    vectors = None if distil.vectors is None else open_vectors(distil, encoder, corpus, total)
    statistics = count_tokens((encoder.tokenizer.encode(document.full_text) for document in corpus), encoder.vocab_size)
    with ProgressBar("encode", total=total, unit="documents") as progress:

        def encode_part(start: int, part: list[Document]) -> EncodedShard:
            given = None if vectors is None else vectors[start : start + len(part)]
            shard = _shard(encoder, part, given, statistics, settings.top_k)
            progress.advance(len(part))
            return shard

        write_shards(store, corpus, settings.shard_size, encode_part, progress)
    return store


def open_vectors(distil: DistilTableRecipe, encoder: BiEncoder, corpus: Corpus, count: int) -> npt.NDArray[np.floating]:
    """The given document vectors (N, H), mapped from their file, checked against corpus and encoder.

    Raises RecipeError for another shape or number type, for ids in another order than the corpus', and when they are
    not what the encoder makes of the corpus' first documents.
    """
    try:
        vectors: npt.NDArray[np.floating] = np.load(str(distil.vectors), mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise RecipeError(f"distil.vectors: {distil.vectors} can't be read as .npy: {error}.") from error
    shape = (count, encoder.hidden_size)
    if vectors.shape != shape or vectors.dtype.type not in (np.float16, np.float32):
        raise RecipeError(
            f"distil.vectors: {distil.vectors} is {vectors.dtype.name} of shape {vectors.shape}, expected float16 or "
            f"float32 of shape {shape}: one row per document of the corpus.",
            remedy="Give all the vectors, in the corpus' order.",
        )
    if distil.ids is not None:
        _check_ids(distil.ids, corpus)
    probes = list(islice(corpus, _PROBES))
    theirs = _unit(vectors[: len(probes)], probes)
    cosines = (theirs * encoder.encode_documents([document.full_text for document in probes])).sum(axis=1)
    if np.median(cosines) < _LEAST_COSINE:
        raise RecipeError(
            f"distil.vectors: the first {len(probes)} have a median cosine of {np.median(cosines):.2f} with what "
            f"{encoder.name} makes of the corpus' first documents.",
            remedy="Give the vectors of this bi-encoder and this corpus (title, one space, text), in its order.",
        )
    return vectors


def _check_ids(path: Path, corpus: Corpus) -> None:
    try:
        ids = [read_text(line) for _, line in read_lines(path)]
    except (CorpusError, ValueError) as error:
        raise RecipeError(f"distil.ids: {path} can't be read: {error}.") from error
    number = 0
    for number, document in enumerate(corpus, start=1):
        found = ids[number - 1] if number <= len(ids) else "nothing"
        if found != document.id:
            raise RecipeError(
                f'distil.ids: line {number} of {path} has {found!r} where the corpus has "{document.id}".',
                remedy="Give ids and vectors in the corpus' order.",
            )
    if number < len(ids):
        raise RecipeError(f"distil.ids: {path} has {len(ids)} ids, the corpus {number} documents.")


def _shard(
    encoder: BiEncoder,
    documents: list[Document],
    given: npt.NDArray[np.floating] | None,
    statistics: Bm25Statistics,
    top_k: int | None,
) -> EncodedShard:
    texts = [document.full_text for document in documents]
    dense = encoder.encode_documents(texts) if given is None else _unit(given, documents)
    tokens = encoder.tokenizer.encode_batch(texts)
    rows = [bm25_impacts(ids, statistics, quantization=QUANTIZATION, top_k=top_k) for ids in tokens]
    return encoded_shard([document.id for document in documents], dense, rows, encoder.count_cut(tokens))


def _unit(vectors: npt.NDArray[np.floating], documents: list[Document]) -> npt.NDArray[np.float32]:
    """The vectors (n, H) as float32 of length 1. Raises CorpusError for one that is zero or not finite."""
    rows = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0))[:, 0])
    if len(bad):
        raise CorpusError(
            f'distil.vectors: the vector of document "{documents[bad[0]].id}" has the norm {norms[bad[0], 0]:g}.',
            remedy="Encode that document again.",
        )
    unit: npt.NDArray[np.float32] = rows / norms
    return unit


def _plan(encoder: BiEncoder, corpus: Corpus, settings: EncodeRecipe, distil: DistilTableRecipe) -> dict[str, object]:
    return {
        "corpus_sha256": corpus.sha256(),
        "limit": corpus.limit,
        "skip_bad": corpus.skip_bad,
        "model": encoder.fingerprint,
        "vectors_sha256": None if distil.vectors is None else file_sha256(distil.vectors),
        "impacts": "bm25",
        "max_length": settings.max_length,
        "top_k": settings.top_k,
        "quantization": QUANTIZATION,
        "shard_size": settings.shard_size,
        "device": encoder.device.type,
        "software": software(),
    }
