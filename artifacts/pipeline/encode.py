"""Encode a corpus: dense vectors, by the model or from a file, and sparse impacts of every document, in shards."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int64Array, UInt8Array
from lightretriever.artifacts.errors import CorpusError, ModelError, RecipeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.language_model import QUANTIZATION
from lightretriever.artifacts.pipeline.model import software
from lightretriever.artifacts.pipeline.rows import ImpactRows, ModelRows
from lightretriever.artifacts.pipeline.store import TextStore, first_rows
from lightretriever.artifacts.reports import ProgressBar, Summary, encoded_line, folder_size, left_out, megabytes

_PIECE: Final = 16
"""Texts that are read at a time where each is read by itself."""

_FILE_S: Final = 5.0
"""Work that a file holds, unless its shard ends before."""

_NO_TERMS: Final = (np.empty(0, np.int32), np.empty(0, np.uint16))

_PROBES: Final = 64
"""Drawn rows of given vectors that are compared with the encoder's own, beside the first and the last."""

_MIN_COSINE: Final = 0.9
"""Below it, a row is another document's or another encoder's; rounding and cutting cost far less."""

_MAX_BAD: Final = 0.05
"""The share of the compared rows that may be bad: some documents may have changed since they were encoded."""

_CHUNK: Final = 65_536


def encode_summary(
    store: TextStore, texts: UInt8Array, skipped: int, *, reused: int, encoded: int, removed: int
) -> Summary:
    """The summary of documents with these texts (n, 16), of whose corpus so many lines were `skipped`."""
    terms, cut = store.counts(texts)
    shards, size = -(-len(texts) // store.plan["shard_size"]), folder_size(store.path)[1]
    facts = {"documents": len(texts), "reused": reused, "encoded": encoded, "removed": removed, "skipped": skipped}
    facts |= {"cut": cut, "terms": terms, "dimension": store.plan["dimension"], "shards": shards, "bytes": size}
    line = f"{store.path}: {len(texts):,} documents, {terms:,} sparse terms in {shards:,} shards, {megabytes(size)}"
    lines = [line, encoded_line(reused, encoded, removed), *left_out(skipped, cut)]
    return Summary(str(store.path), lines, {"stage": "encode", **facts})


def encode_corpus(
    encoders: Encoders,
    corpus: EncodedCorpus,
    work: Path,
    *,
    shards: slice | None = None,
    vectors: FloatArray | None = None,
) -> Summary:
    """Encode every document of `corpus` below `work`, or those of some `shards`, while other processes encode others;
    what is there is kept. `vectors` (N, H) take the place of the encoder's.

    Impacts are the encoder's, none where they are BM25, which depends on the whole corpus. A kill loses at most a
    shard, or some seconds of one where texts are read one by one; the same call again ends with the same bytes. Texts
    that the corpus lacks are removed, unless it has a limit.

    Raises ResumeError when `work` was begun with another model or setting.
    """
    plan = {
        "model": encoders.fingerprint,
        "device": encoders.dense.device.type,
        "software": software(),
        "quantization": QUANTIZATION,
        "impacts": encoders.impacts,
        "dimension": encoders.dense.hidden_size,
        **encoders.settings.model_dump(include={"max_length", "top_k", "shard_size", "batch_tokens"}),
    }
    store, texts = TextStore.begin(work, plan), corpus.digests
    with ProgressBar("encode", total=len(corpus), unit="documents") as progress:

        def encode(rows: Int64Array) -> ModelRows:
            read = [corpus.document(row) for row in rows.tolist()]
            full = [document.full_text for document in read]
            encoded = encoders.encode_documents(full, None if vectors is None else _unit_rows(vectors[rows]))
            return model_rows([document.id for document in read], encoded, encoders.are_cut(full))

        places, new = encode_texts(store, texts, encode, progress, shards=shards, alone=encoders.one_by_one)
    limited = corpus.facts["limit"] is not None  # a trial, say, which must not cost what the whole corpus took
    removed = 0 if limited or shards is not None else store.others(texts)
    if shards is None:
        store.join(texts, keep=limited)
    reused = len(places) - new
    return encode_summary(store, texts[places], corpus.skipped.count, reused=reused, encoded=new, removed=removed)


def encode_texts(
    store: TextStore,
    texts: UInt8Array,
    encode: Callable[[Int64Array], ModelRows],
    progress: ProgressBar,
    *,
    shards: slice | None = None,
    alone: bool = False,
) -> tuple[Int64Array, int]:
    """Encode those of the texts with these digests (N, 16) that the store lacks, or of some `shards` of them. Return
    the places of all texts of these shards, and how many of them were new.

    `encode` is called with places of texts, each once, all of one shard; where texts are read `alone`, with a few, of
    which a stop loses none that is done.
    """
    size = store.plan["shard_size"]
    of = np.arange(len(texts)) // size
    in_shards = np.isin(of, np.unique(of)[shards or slice(None)])
    wanted = np.flatnonzero(in_shards & ~store.has(texts))
    distinct = wanted[first_rows(texts[wanted])]
    progress.skip(len(texts) - len(distinct))
    step = _PIECE if alone else size
    for shard in np.split(distinct, np.flatnonzero(np.diff(distinct // size)) + 1):
        first, encoded, began = 0, list[ModelRows](), perf_counter()
        try:
            for start in range(0, len(shard), step):
                rows = shard[start : start + step]
                encoded.append(encode(rows))
                progress.advance(len(rows))
                if perf_counter() - began >= _FILE_S:
                    store.add(texts[shard[first : start + step]], ModelRows.joined(encoded))
                    first, encoded, began = start + step, [], perf_counter()
        finally:  # of a shard, or of a run that is stopped
            if encoded:
                store.add(texts[shard[first:][: sum(map(len, encoded))]], ModelRows.joined(encoded))
    return np.flatnonzero(in_shards), len(wanted)


def model_rows(ids: Sequence[str], encoded: Encoded, cut: Sequence[bool]) -> ModelRows:
    """Return the rows of encoded documents, vectors as float16. Raises ModelError for a vector that is not finite."""
    dense = encoded.dense.astype(np.float16)
    if not np.isfinite(dense).all():
        bad = ids[int(np.flatnonzero(~np.isfinite(dense).all(axis=1))[0])]
        raise ModelError(f'Document "{bad}" has a vector that is not finite.', remedy="Set model.dtype to float32.")
    return ModelRows(dense, ImpactRows.of(encoded.sparse or [_NO_TERMS] * len(ids)), np.array(cut, np.bool_))


def given_vectors(path: Path, encoder: Encoder, corpus: EncodedCorpus) -> tuple[FloatArray, str]:
    """Map the vectors (N, H) of the corpus' documents, and say which compared rows are not the encoder's, "" for none.

    Raises RecipeError for another shape or number type, and when they are not what the encoder makes of the first, the
    last and drawn documents; CorpusError for one that is zero or not finite.
    """
    try:
        vectors: FloatArray = load_npy(path)
    except UNREADABLE as error:
        raise RecipeError(
            f"distil.vectors: {path} can't be read as .npy: {error}.", remedy="Give a file that numpy.save wrote."
        ) from error
    shape = (len(corpus), encoder.hidden_size)
    if vectors.shape != shape or vectors.dtype.type not in (np.float16, np.float32):
        raise RecipeError(
            f"distil.vectors: {path} is {vectors.dtype.name} of shape {vectors.shape}, expected float16 or float32 "
            f"of shape {shape}: one row per document of the corpus.",
            remedy="Give all the vectors, in the corpus' order, saved as vectors.astype(numpy.float32).",
        )
    for start in range(0, len(vectors), _CHUNK):
        norms = np.linalg.norm(np.asarray(vectors[start : start + _CHUNK], dtype=np.float32), axis=1)
        if len(bad := np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))):
            document = corpus.document(start + int(bad[0]))
            raise CorpusError(
                f'distil.vectors: the vector of document "{document.id}" has the norm {norms[bad[0]]:g}.',
                remedy="Encode that document again.",
            )
    return vectors, _compare(vectors, encoder, corpus)


def _compare(vectors: FloatArray, encoder: Encoder, corpus: EncodedCorpus) -> str:
    """Compare some rows with the encoder's own: what to say of bad ones. Raises RecipeError where they are too many."""
    count = len(vectors)
    drawn = np.random.default_rng(0).choice(count, size=min(_PROBES, count), replace=False)
    rows = np.unique([0, count - 1, *drawn])
    documents = [corpus.document(row) for row in rows.tolist()]
    encoded = encoder.encode_documents([document.full_text for document in documents]).dense
    cosines = (_unit_rows(vectors[rows]) * encoded).sum(axis=1)
    bad = np.flatnonzero(cosines < _MIN_COSINE)
    if not len(bad):
        return ""
    doubt = (
        f"distil.vectors: {len(bad)} of {len(rows)} compared rows are not what {encoder.name} makes of the corpus' "
        f'documents. The first of them is row {rows[bad[0]]}, document "{documents[bad[0]].id}", with a cosine of '
        f"{cosines[bad[0]]:.2f} (at least {_MIN_COSINE})."
    )
    if len(bad) > _MAX_BAD * len(rows):
        remedy = "Give the vectors of this bi-encoder and this corpus (title, one space, text), in its order."
        raise RecipeError(doubt, remedy=remedy)
    return doubt


def _unit_rows(vectors: FloatArray) -> Float32Array:
    """Vectors (n, H) made of length 1, float32."""
    rows = np.asarray(vectors, dtype=np.float32)
    unit: Float32Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
