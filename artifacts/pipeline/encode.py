"""Encode a corpus: dense vectors and sparse impacts of every document, in shards that can be resumed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np

from lightretriever.artifacts.dtypes import FloatArray, Int64Array, UInt8Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoder import Encoded
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.given_vectors import unit_rows
from lightretriever.artifacts.pipeline.language_model import QUANTIZATION
from lightretriever.artifacts.pipeline.rows import ImpactRows, ModelRows
from lightretriever.artifacts.pipeline.store import TextStore, first_rows
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.summary import Summary, encoded_line, folder_size, left_out, megabytes

_PIECE: Final = 16
"""Texts that are read at a time where each is read by itself."""

_FILE_S: Final = 5.0
"""Work that a file holds, unless its shard ends before."""

_NO_TERMS: Final = (np.empty(0, np.int32), np.empty(0, np.uint16))


def encode_summary(
    store: TextStore, texts: UInt8Array, skipped: int, *, reused: int, encoded: int, removed: int
) -> Summary:
    """The summary of documents with these texts (n, 16), of whose corpus so many lines were `skipped`: the model read
    the `encoded` ones, and the vectors of the `reused` were there; `removed` are texts of an earlier corpus."""
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

    Impacts are the encoder's, none where they are BM25: the stage `index` adds that, which depends on the whole corpus.
    Killed at any point and called again, it loses at most one shard, or the last seconds of one if texts are read one
    by one, and ends with byte-identical files. After a change of the corpus it encodes the new texts alone, on a CPU to
    the bytes of a new directory. Texts that the corpus lacks are removed, unless it has a limit.

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
            encoded = encoders.encode_documents(full, None if vectors is None else unit_rows(vectors[rows]))
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
    """Encode those of the texts with these digests (N, 16) that the store lacks, or of some `shards` of them.
    Gives the places of all texts of these shards, and how many of them were new.

    `encode` is called with places of texts, each once, all of one shard. `alone` says that what is made of a text
    doesn't depend on those beside it: shards are encoded in pieces, of which a stop loses one, and a kill some seconds.
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
