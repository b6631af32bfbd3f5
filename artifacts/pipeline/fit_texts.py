"""The texts that token tables are fitted to, with the vectors that the whole encoder makes of them.

Judgments are never read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from lightretriever.artifacts.corpus.beir import read_queries
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float16Array, Int32Array, Int64Array
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.encode import encode_texts, model_rows
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus, encoded_corpus
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder
from lightretriever.artifacts.pipeline.fit import FitTexts
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, Recipe
from lightretriever.artifacts.pipeline.rows import ModelRows
from lightretriever.artifacts.pipeline.store import TextStore, text_digests
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.idf import TokenStatistics, count_tokens
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer, sentences_of

Text = TypeVar("Text")

_PART = 2048
_CHECKED = 1000


@dataclass(frozen=True)
class DistilTexts:
    """Drawn documents as token ids, with their `vectors` (n, H), and `texts`: queries and sentences of the documents,
    each once. `keep` says that vectors of other texts are kept."""

    settings: DistilTableRecipe
    encoder: Encoder
    documents: list[Int32Array]
    vectors: Float16Array
    statistics: TokenStatistics
    texts: list[str]
    keep: bool

    @classmethod
    def of(cls, recipe: Recipe, settings: DistilTableRecipe, encoder: Encoder) -> Self:
        """Read the corpus, its vectors and the queries. Raises ModelError for a tokenizer that can't serve queries, and
        RecipeError where neither documents nor queries have a token that it knows."""
        store, corpus = TextStore(recipe.work / "encode"), encoded_corpus(recipe)
        rows = np.sort(np.random.default_rng(settings.seed).permutation(len(corpus))[: settings.documents])
        vectors = store.rows(corpus.digests[rows]).dense
        texts = query_texts(settings.queries, settings.sample, settings.seed)
        if settings.sentences:
            limit = None if settings.sentences is True else settings.sentences
            texts += corpus_sentences(map(corpus.document, rows.tolist()), limit, settings.seed)
        texts = list(dict.fromkeys(texts))
        tokens = _tokens(encoder.tokenizer, corpus, rows, encoder.longest)
        if not any(map(len, tokens)) and not any(map(len, encoder.tokenizer.as_queries(texts))):
            raise RecipeError(
                f"None of the {len(tokens)} documents and {len(texts)} other texts has a token that {encoder.name} "
                "knows, so no token table can be fitted to them.",
                remedy="Name a model.path whose vocabulary has the corpus' script.",
            )
        encoder.check_tokens([*texts[:_CHECKED], *islice(corpus.texts(), _CHECKED)])
        statistics, keep = count_tokens(tokens, encoder.tokenizer.vocab_size), recipe.corpus.limit is not None
        return cls(settings, encoder, tokens, vectors, statistics, texts, keep)

    def of_task(self, instruction: str, teacher: Path) -> FitTexts:
        """Documents, sentences and queries. The encoder's vectors of the latter two are kept below `teacher`."""
        targets = teacher_vectors(self.encoder, self.texts, instruction, teacher, alone=True, keep=self.keep)
        bags = [ids[: self.encoder.longest] for ids in self.encoder.tokenizer.as_queries(self.texts)]
        return FitTexts.of(self.documents, self.vectors, bags, targets, self.settings)


def query_texts(paths: Sequence[Path], sample: int | None, seed: int) -> list[str]:
    """Queries of BEIR files or folders, each once: at most `sample` of each file (None: all), drawn by `seed`.

    Raises CorpusError for a file that can't be read.
    """
    texts: list[str] = []
    for number, path in enumerate(paths):
        texts += draw(list(dict.fromkeys(read_queries(path).values())), sample, (seed, number))
    return list(dict.fromkeys(texts))


def corpus_sentences(documents: Iterable[Document], limit: int | None, seed: int) -> list[str]:
    """Titles and sentences of a corpus, each once, in its order: at most `limit` (None: all), drawn by `seed`."""
    sentences: dict[str, None] = {}
    for document in documents:
        sentences |= dict.fromkeys(sentences_of(document.title, document.text))
    return draw(list(sentences), limit, (seed,))


def teacher_vectors(
    encoder: Encoder,
    texts: Sequence[str],
    instruction: str | None,
    folder: Path,
    *,
    alone: bool = False,
    keep: bool = False,
    label: str = "teacher",
) -> Float16Array:
    """Encode `texts` with the whole encoder, as queries behind `instruction` or, where that is None, as documents:
    (n, H) float16, L2-normalised before rounding.

    They are kept in `folder`, so that a stopped run goes on where it was, and one over other texts encodes only the new
    ones; with `keep`, those of other texts stay there, too. With `alone`, on a CPU, each query is read by itself, so
    that its vector doesn't depend in its last bits on those beside it; this takes two to three times as long. Raises
    ResumeError when the folder was begun with another encoder or another instruction, or can't be read.
    """
    apart = alone and encoder.device.type == "cpu"
    step = 1 if apart else _PART
    plan: dict[str, Any] = {
        "model": encoder.fingerprint,
        "instruction": instruction,
        "device": encoder.device.type,
        "alone": alone,
    }
    plan |= {"software": software(), "dimension": encoder.hidden_size, "shard_size": _PART}
    store, digests = TextStore.begin(folder, plan), text_digests(texts)
    with ProgressBar(label, total=len(texts), unit="texts") as progress:

        def encode(rows: Int64Array) -> ModelRows:
            new = [texts[row] for row in rows.tolist()]
            if instruction is None:
                batches = [encoder.encode_documents(new)]
            else:
                parts = (new[start : start + step] for start in range(0, len(new), step))
                batches = [encoder.encode_queries(part, instruction) for part in parts]
            dense = np.concatenate([batch.dense for batch in batches])
            return model_rows(new, Encoded(dense), [False] * len(new))

        encode_texts(store, digests, encode, progress, alone=apart)
    store.join(digests, keep=keep)
    return store.rows(digests).dense


def _tokens(tokenizer: TextTokenizer, corpus: EncodedCorpus, rows: Int64Array, longest: int | None) -> list[Int32Array]:
    """The known token ids (n,) among the first `longest` of documents."""
    tokens: list[Int32Array] = []
    for start in range(0, len(rows), _PART):
        texts = [corpus.document(row).full_text for row in rows[start : start + _PART].tolist()]
        tokens += (tokenizer.without_unknown(ids[:longest]) for ids in tokenizer.encode_batch(texts))
    return tokens


def draw(texts: list[Text], limit: int | None, seed: tuple[int, ...]) -> list[Text]:
    """At most `limit` of the texts (None: all), drawn by `seed`, in their order."""
    if limit is None or len(texts) <= limit:
        return texts
    kept = np.sort(np.random.default_rng(seed).choice(len(texts), size=limit, replace=False))
    return [texts[index] for index in kept]
