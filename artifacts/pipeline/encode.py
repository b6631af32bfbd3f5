"""Encode a corpus: dense vectors and sparse impacts of every document, in resumable shards."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.beir import Skipped, file_sha256
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.shards import EncodedRow, EncodedShard, Part, ShardStore, text_digest
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoder import Encoded
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.given_vectors import GivenVectors
from lightretriever.artifacts.pipeline.sparse_head import QUANTIZATION
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar
from rich.console import Console

__all__ = [
    "Counts",
    "Encoding",
    "Written",
    "encode_corpus",
    "encoded_rows",
    "write_shards",
]

_PIECE: Final = 16
"""Texts that are read at a time where each is read by itself."""

_NO_TERMS: Final = (np.empty(0, np.int32), np.empty(0, np.uint16))


class Counts(NamedTuple):
    """Of the documents of a run, the vectors of the `reused` were there, and the model read the texts of the `encoded`;
    `removed` counts the texts of an earlier corpus that this one no longer has."""

    reused: int
    encoded: int
    removed: int


@dataclass(frozen=True)
class Encoding:
    """The result of a run: the `store` that has it, and the `names` of the corpus' shards, or of those of its part.

    `skipped` are bad lines of the corpus, `doubtful` counts the given vectors that were compared and differ.
    """

    store: ShardStore
    names: list[str]
    counts: Counts
    skipped: Skipped
    doubtful: int = 0


def encode_corpus(
    encoders: Encoders,
    corpus: EncodedCorpus,
    work: Path,
    *,
    vectors: Path | None = None,
    ids: Path | None = None,
    part: Part | None = None,
) -> Encoding:
    """Encode every document of `corpus` into the shards of `work`, or a `part` of the shards; what is there is kept.

    Dense vectors are the encoder's, or those of the file `vectors`, in the order of `ids` (see `GivenVectors`). Impacts
    are the encoder's, none where they are BM25: `index` adds that, which depends on the whole corpus. Killed at any
    point and called again, it loses at most one shard and ends with byte-identical files. After a change of the corpus
    it encodes the new texts alone, to the bytes of a new directory, if the encoder reads each text by itself, as all do
    on a CPU.

    Raises ResumeError when `work` was begun with another model or setting, and RecipeError when the given vectors don't
    fit corpus or encoder.
    """
    settings = encoders.settings
    store = ShardStore.begin(work, _plan(encoders, given=vectors is not None))
    total, read = len(corpus), corpus.facts
    given = None if vectors is None else GivenVectors.open(vectors, ids, encoders.dense, corpus)
    if given is not None and given.doubt:
        Console(stderr=True).print(f"warning: {given.doubt}", markup=False, highlight=False, soft_wrap=True)
    documents = {name: read[name] for name in ("corpus_sha256", "limit", "skip_bad")}
    documents["vectors_sha256"] = None if vectors is None else file_sha256(vectors)
    with ProgressBar("encode", total=total, unit="documents") as progress:

        def encode(ids: list[str], texts: list[str]) -> list[EncodedRow]:
            if given is None:
                made = encoders.encode_documents(texts, progress=progress)
            else:
                zeros = np.zeros((len(texts), encoders.dense.hidden_size), np.float32)
                made = Encoded(zeros, encoders.encode_impacts(texts))
                progress.advance(len(texts))
            return encoded_rows(ids, made, encoders.are_cut(texts))

        items = ((document.id, document.full_text) for document in corpus)
        dense = None if given is None else given.of_documents
        alone = encoders.dense.device.type == "cpu" and settings.batch_tokens is None
        written = write_shards(store, items, settings.shard_size, encode, progress, part=part, dense=dense, alone=alone)
    removed = store.left(written.names, written.texts)
    store.finish(written.names, documents, skipped=corpus.skipped.count, part=part)
    names = [name for place, name in enumerate(written.names) if part is None or part.has(place)]
    doubtful = 0 if given is None else given.doubtful
    return Encoding(store, names, Counts(written.reused, written.encoded, removed), corpus.skipped, doubtful)


@dataclass
class Written:
    """The `names` of all shards, the digests of all `texts`, and how many of the run's part were `reused` and
    `encoded`."""

    names: list[str] = field(default_factory=list)
    texts: set[bytes] = field(default_factory=set)
    reused: int = 0
    encoded: int = 0


def write_shards(
    store: ShardStore,
    items: Iterable[tuple[str, str]],
    size: int,
    encode: Callable[[list[str], list[str]], list[EncodedRow]],
    progress: ProgressBar,
    *,
    part: Part | None = None,
    dense: Callable[[int, int], npt.NDArray[np.float32]] | None = None,
    alone: bool = False,
) -> Written:
    """Write the shards of `size` texts each, given by id and text, that are not there, or a `part` of them.

    `encode` is called with ids and texts that no shard has, and advances the progress. `dense` gives the vectors
    (n, H) of n texts from a place on, where they are not the encoder's. `alone` says that a text's row doesn't depend
    on those beside it: what is read when a signal stops the command is kept in a shard of its own, which the next run
    reads.
    """
    written, rest = Written(), iter(items)
    while chunk := list(islice(rest, size)):
        ids, texts = [one for one, _ in chunk], [text_digest(text) for _, text in chunk]
        place = len(written.names)
        given = None if dense is None else dense(place * size, len(chunk)).astype(np.float16)
        name = store.name(ids, texts, given)
        written.names.append(name)
        written.texts.update(texts)
        own = part is None or part.has(place)
        if store.has(name) or not own:
            progress.skip(len(chunk))
            written.reused += len(chunk) if own else 0
            continue
        rows = store.rows(texts)
        reused = sum(text in rows for text in texts)
        written.reused += reused
        written.encoded += len(chunk) - reused
        new = {text: row for row, text in enumerate(texts) if text not in rows}  # equal texts are encoded once
        progress.skip(len(chunk) - len(new))
        if new:
            places = list(new.values())
            step, made = _PIECE if alone else len(places), list[EncodedRow]()
            try:
                for start in range(0, len(places), step):
                    piece = places[start : start + step]
                    made += encode([ids[row] for row in piece], [chunk[row][1] for row in piece])
            except KeyboardInterrupt:
                if made:
                    kept = places[: len(made)]
                    shard = EncodedShard.of([ids[row] for row in kept], [texts[row] for row in kept], made)
                    store.write(store.name(shard.ids, [texts[row] for row in kept]), shard)
                raise
            rows |= zip(new, made, strict=True)
        shard = EncodedShard.of(ids, texts, [rows[text] for text in texts])
        store.write(name, shard if given is None else replace(shard, dense=given))
    return written


def encoded_rows(ids: list[str], made: Encoded, cut: Sequence[bool]) -> list[EncodedRow]:
    """Documents as a shard holds them, their vectors as float16. Raises ModelError for one that is not finite."""
    dense, sparse = made.dense.astype(np.float16), made.sparse or [_NO_TERMS] * len(ids)
    if not np.isfinite(dense).all():
        bad = ids[int(np.flatnonzero(~np.isfinite(dense).all(axis=1))[0])]
        raise ModelError(f'Document "{bad}" has a vector that is not finite.', remedy="Set model.dtype to float32.")
    return [EncodedRow(*row) for row in zip(dense, *zip(*sparse, strict=True), cut, strict=True)]


def _plan(encoders: Encoders, *, given: bool) -> dict[str, Any]:
    return {
        "model": encoders.fingerprint,
        "device": encoders.dense.device.type,
        "software": software(),
        "quantization": QUANTIZATION,
        "impacts": encoders.impacts,
        "given_vectors": given,
        **encoders.settings.model_dump(include={"max_length", "top_k", "shard_size", "batch_tokens"}),
    }
