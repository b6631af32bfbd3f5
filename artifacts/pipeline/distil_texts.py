"""What a token table is distilled from: queries, the corpus' own sentences, and the teacher's vectors of them."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.beir import Document, read_queries
from lightretriever.artifacts.files.workdir import check_plan, read_array, write_array
from lightretriever.artifacts.pipeline.biencoder import BiEncoder
from lightretriever.artifacts.pipeline.software import software
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["corpus_sentences", "query_texts", "teacher_vectors"]

_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|\n+|(?<=[。！？])")
_SHORTEST = 4
"""Words of a sentence worth training on; a text in a script without spaces counts its characters."""

_PART = 2048


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
