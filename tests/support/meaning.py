"""A small bundle whose vectors mean something: a document's vector is the mean of its words' rows in the table."""

from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import CorpusInfo, LegWeights, ModelInfo, SparseInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import BundleContent, TableInput, write_bundle
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer, document_text
from tests.support.tiny import batch_of, in_vocabulary
from tests.support.vectors import unit

TEXTS: Final = (
    ("Repairing bicycles", "How to mend the punctured tyre of a bicycle, adjust its brakes and oil the chain."),
    ("Growing tomatoes", "Tomatoes want sun, water and patience; tie the plants to canes and pick the ripe ones."),
    ("Baking bread", "Knead flour, water, salt and yeast, let the dough rise twice, and bake the loaf in a hot oven."),
    ("Keeping bees", "Beekeepers open the hives on warm days, look for the queens, and harvest honey in summer."),
    ("Sailing dinghies", "Trim the sails, watch the wind, and keep the dinghies upright when you tack."),
    ("Reading maps", "Contours show how steep the mountains are; a compass tells which way is north."),
    ("Mending clocks", "Clocks stop when dust gets between the wheels; clean the bearings and wind the spring."),
    (
        "Painting walls",
        "Wash the walls, fill the cracks, and paint them twice; the second coat hides the brushes' marks.",
    ),
    ("Playing chess", "Openings develop the knights and bishops; endgames are won by kings and patient pawns."),
    (
        "Making cheese",
        "Warm the milk, add rennet, cut the curds, press them, and let the cheeses ripen in a cool cellar.",
    ),
)
_FORMS: Final = ("dinghy", "sailed", "tomato", "plant")  # of words in the texts
_SYLLABLES: Final = ("ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "ru", "sa", "te")
_WIDTH: Final = 256


def make_meaningful_bundle(
    path: Path, *, vocabulary: VocabularyKind = "words", invented: int = 1500, weights: LegWeights | None = None
) -> Bundle:
    """Write a bundle of `TEXTS` and open it, whose sparse leg has the terms of an English `vocabulary`. The tokenizer
    has a token for each of their words, for other forms of a few, and for as many `invented` words, which no document
    has."""
    file = path.with_name(f"{path.name}.tokenizer.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    _tokenizer(invented).save(str(file))
    tokenizer = TextTokenizer.from_file(file)
    rows = np.random.default_rng(5).standard_normal((tokenizer.vocab_size, _WIDTH)).astype(np.float32)
    content = BundleContent(
        name="meaning",
        model=ModelInfo(name="mean-of-rows", hidden_size=_WIDTH, trained=False),
        corpus=CorpusInfo(name="hobbies"),
        tokenizer_file=file,
        lowercase=True,
        tables={"search": TableInput("", rows)},
        default_task="search",
        documents=[_batch(tokenizer, rows, vocabulary)],
        dimension=_WIDTH,
        sparse=SparseInfo(
            vocabulary=vocabulary,
            language=None if vocabulary == "tokens" else "english",
            impacts="bm25" if vocabulary == "words" else "learned",
        ),
        weights=weights,
    )
    bundle = write_bundle(path, content)
    file.unlink()
    return bundle


def _tokenizer(invented: int) -> Tokenizer:
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    own = [word for text in TEXTS for part in text for word, _ in splitter.pre_tokenize_str(part.lower())]
    made = ["".join(parts) for parts in product(_SYLLABLES, repeat=3)][:invented]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(["[UNK]", *own, *_FORMS, *made]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = splitter
    return tokenizer


def _batch(tokenizer: TextTokenizer, rows: np.ndarray, vocabulary: VocabularyKind) -> EncodedBatch:
    texts = [document_text(*part) for part in TEXTS]
    found = [np.unique(tokenizer.encode(text), return_counts=True) for text in texts]
    dense = np.stack([rows[terms].T @ counts for terms, counts in found]).astype(np.float32)
    learned = [dict(zip(terms.tolist(), (100 * counts).tolist(), strict=True)) for terms, counts in found]
    impacts, names = in_vocabulary(texts, learned, vocabulary)
    ids = [f"doc-{number}" for number in range(len(TEXTS))]
    fields = [{"_id": one, "title": title, "text": text} for one, (title, text) in zip(ids, TEXTS, strict=True)]
    return batch_of(ids, [orjson.dumps(one) for one in fields], unit(dense), impacts, names)
