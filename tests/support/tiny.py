"""A small but whole bundle: real tokenizer, real Faiss, real Lucene, only the vectors are random."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import CorpusInfo, LegWeights, ModelInfo, SparseInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import BundleContent, TableInput, write_bundle
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.pipeline.impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.rows import TermCounts
from lightretriever.artifacts.sparse.vocabulary import Vocabulary, VocabularyKind
from lightretriever.artifacts.tokens.idf import count_tokens
from lightretriever.artifacts.tokens.table import TableDtype
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer, document_text
from tests.support.vectors import Layout, laid_out, unit

BundleOf = Callable[..., Bundle]
"""Of the fixture `bundle_of`: takes a vocabulary and `dense`."""

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TASKS = {
    "default": "Given a web search query, retrieve relevant passages that answer the query",
    "fact": "Given a scientific claim, retrieve documents that support or refute the claim",
}
QUANTIZATION = 100

_HAND_WRITTEN = (
    ("music", "Terminal music player", "Plays music files from the terminal, with playlists and a small library."),
    ("editor", "Text editor", "A modal text editor with syntax highlighting and many plugins."),
    ("unicode", "Zażółć gęślą jaźń", "Übergröße, façade, naïve: words with accents — and an emoji 🎵."),
    ("greek", "Ελληνικά", "Η γρήγορη καφέ αλεπού πηδά πάνω από το τεμπέλικο σκυλί."),
    ("cjk", "日本語の文書", "これは検索エンジンのための短い文書です。"),
    ("cyrillic", "", "Съешь ещё этих мягких французских булок, да выпей чаю."),
    ("no-title", "", "A document without a title still has a text."),
    ("no-text", "A document that has only its title", ""),
    ("special", "Control tokens", "The string <|endoftext|> in a text is ordinary text, not a token."),
    ('odd id/with "quotes" & ünï', "Odd identifiers", "Identifiers may hold spaces, slashes and quotes."),
    ("repeat", "Repeat", "music music music music music player player terminal"),
    ("long", "A long one", "search engine retrieval document query " * 40),
)
_SUBJECTS = ("A library", "The tool", "This package", "A daemon", "The compiler", "A small game", "The parser")
_VERBS = ("reads", "converts", "plays", "searches", "compresses", "displays", "measures")
_OBJECTS = ("music files", "scientific papers", "network traffic", "large images", "text documents", "chess games")
_PLACES = ("from the terminal", "over the network", "in the background", "with few dependencies", "on every machine")


@dataclass(frozen=True)
class TinyDocument:
    """A corpus line; `year` and the fields of `more` are those that only this corpus has."""

    id: str
    title: str
    text: str
    year: int
    more: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def raw(self) -> bytes:
        """The line as JSON."""
        record = {"_id": self.id, "title": self.title, "text": self.text, "year": self.year, **self.more}
        return json.dumps(record, ensure_ascii=False).encode()

    @property
    def full_text(self) -> str:
        return document_text(self.title, self.text)


def tiny_documents(count: int = 120, *, seed: int = 7) -> list[TinyDocument]:
    """`count` documents: some hand-written with scripts, accents and odd ids, the others generated sentences."""
    random = np.random.default_rng(seed)
    documents = [TinyDocument(*written, year=2000) for written in _HAND_WRITTEN[:count]]
    while len(documents) < count:
        words = [part[random.integers(len(part))] for part in (_SUBJECTS, _VERBS, _OBJECTS, _PLACES)]
        number = len(documents)
        text = f"{' '.join(words)}. Release {number} also {words[1]} {_OBJECTS[number % len(_OBJECTS)]}."
        documents.append(TinyDocument(f"doc-{number}", f"{words[0]} number {number}", text, 2000 + number % 25))
    return documents


def train_tokenizer(path: Path, texts: Sequence[str], *, vocab_size: int = 400) -> None:
    """Train a byte-level BPE on `texts` and write its `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text.lower() for text in texts], trainer)
    tokenizer.save(str(path))


def english_tokenizer() -> Tokenizer:
    """A WordPiece that knows four English words, all numbers, and nothing else."""
    words = ["music", "player", "terminal", "a", *"0123456789", *(f"##{digit}" for digit in "0123456789")]
    pieces = {piece: place for place, piece in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def tiny_batches(
    documents: Sequence[TinyDocument],
    tokenizer: TextTokenizer,
    *,
    dimension: int = 16,
    seed: int = 7,
    batch_size: int = 50,
    vocabulary: VocabularyKind = "tokens",
) -> Iterator[EncodedBatch]:
    """The documents as an encoder would give them: random unit vectors; impacts of tokens from their counts plus some
    random tokens that the text does not have (expansion), impacts of words by BM25."""
    random = np.random.default_rng(seed)
    parts = [documents[start : start + batch_size] for start in range(0, len(documents), batch_size)]
    vectors, learned = list[npt.NDArray[np.float32]](), list[dict[int, int]]()
    for part in parts:
        vectors.append(random.standard_normal((len(part), dimension)).astype(np.float32))
        learned += [_impacts(tokenizer, document, random) for document in part]
    texts = [document.full_text for document in documents]
    impacts, names = in_vocabulary(texts, learned, vocabulary)
    for number, (part, dense) in enumerate(zip(parts, vectors, strict=True)):
        rows = impacts[number * batch_size : number * batch_size + len(part)]
        ids, raws = [document.id for document in part], [document.raw for document in part]
        yield batch_of(ids, raws, unit(dense), rows, names)


def batch_of(
    ids: list[str],
    documents: list[bytes],
    dense: npt.NDArray[np.float32],
    rows: Sequence[Mapping[int, int]],
    names: list[str] | None = None,
) -> EncodedBatch:
    """Documents as a batch; `rows` are their terms with the impacts."""
    return EncodedBatch(
        ids,
        documents,
        dense,
        indptr=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        terms=np.array([term for row in rows for term in row], dtype=np.int32),
        impacts=np.array([impact for row in rows for impact in row.values()], dtype=np.uint16),
        names=names,
    )


def in_vocabulary(
    texts: Sequence[str], learned: Sequence[dict[int, int]], vocabulary: VocabularyKind
) -> tuple[list[dict[int, int]], list[str] | None]:
    """The impacts of documents by the terms of a vocabulary, and the names of the terms: of tokens the `learned` ones,
    of words the BM25 that the pipeline counts in the texts."""
    if vocabulary == "tokens":
        return list(learned), None
    words = Vocabulary(None, "english")
    bm25 = Bm25Encoder.of(TermCounts.of(words.terms_of(texts)), words, quantization=QUANTIZATION, k1=0.9, b=0.4)
    names = [*bm25.numbers]
    rows = [dict(zip(terms.tolist(), impacts.tolist(), strict=True)) for terms, impacts in bm25.impacts(texts)]
    return rows, names


def _impacts(tokenizer: TextTokenizer, document: TinyDocument, random: np.random.Generator) -> dict[int, int]:
    tokens, counts = np.unique(tokenizer.encode(document.full_text), return_counts=True)
    impacts = {
        int(token): round(QUANTIZATION * float(np.log1p(count))) for token, count in zip(tokens, counts, strict=True)
    }
    for token in random.integers(0, tokenizer.vocab_size, size=8):
        impacts.setdefault(int(token), int(random.integers(1, QUANTIZATION)))
    return dict(sorted(impacts.items()))


def tiny_idf(tokenizer: TextTokenizer) -> npt.NDArray[np.float32]:
    """IDF of every token in the tiny documents, (V,)."""
    texts = (tokenizer.encode(document.full_text) for document in tiny_documents())
    return count_tokens(texts, tokenizer.vocab_size).idf()


def make_tiny_bundle(
    path: Path,
    *,
    documents: Sequence[TinyDocument] | int = 120,
    dimension: int = 16,
    tasks: Sequence[str] = tuple(TASKS),
    table_dtype: TableDtype = "float16",
    layout: Layout = "flat",
    top_k: int | None = None,
    idf: bool = False,
    weights: LegWeights | None = None,
    fields: Mapping[str, FieldKind] | None = None,
    vocabulary: VocabularyKind = "tokens",
    positions: bool = False,
    dense: bool = True,
    queries: Sequence[str] = (),
    seed: int = 7,
    own_tokenizer: Tokenizer | None = None,
) -> Bundle:
    """Write a whole small bundle to `path` through the real `write_bundle`, and open it. The same arguments give
    the same vectors. `vocabulary` says what a term is; English words have BM25 impacts. Without `dense`,
    the bundle has the sparse leg alone. With `idf`, query tokens are weighted by `tiny_idf`."""
    corpus = tiny_documents(documents, seed=seed) if isinstance(documents, int) else documents
    tokenizer_file = path.with_name(f"{path.name}.tokenizer.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    if own_tokenizer is None:
        train_tokenizer(tokenizer_file, [document.full_text for document in tiny_documents()])
    else:
        own_tokenizer.save(str(tokenizer_file))
    tokenizer = TextTokenizer.from_file(tokenizer_file)
    content = BundleContent(
        name="tiny",
        model=ModelInfo(name="tiny-random", hidden_size=dimension, trained=False, licence="Apache-2.0"),
        corpus=CorpusInfo(name="tiny", licence="CC0-1.0"),
        tokenizer_file=tokenizer_file,
        lowercase=True,
        tables={
            task: TableInput(TASKS[task], _rows(tokenizer.vocab_size, dimension, seed + i))
            for i, task in enumerate(tasks)
        },
        default_task=tasks[0],
        table_dtype=table_dtype,
        documents=tiny_batches(corpus, tokenizer, dimension=dimension, seed=seed, vocabulary=vocabulary),
        dimension=dimension,
        sparse=SparseInfo(
            vocabulary=vocabulary,
            impacts="bm25" if vocabulary == "words" else "learned",
            language=None if vocabulary == "tokens" else "english",
            positions=positions,
            quantization=QUANTIZATION,
            top_k=top_k,
            k1=None if vocabulary == "tokens" else 0.9,
            b=None if vocabulary == "tokens" else 0.4,
        ),
        idf=tiny_idf(tokenizer) if idf else None,
        dense=dense,
        queries=queries,
        weights=weights,
        fields=fields or {},
    )
    with laid_out(layout):
        bundle = write_bundle(path, content)
    tokenizer_file.unlink()
    return bundle


def _rows(vocab_size: int, dimension: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((vocab_size, dimension)).astype(np.float32)
