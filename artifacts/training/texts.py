"""Texts with the vectors that a teacher gives them: what a regression stage learns from, drawn and encoded in blocks.

WORK/texts/block-00000/   the teacher's vectors of a block of texts (see `artifacts.pipeline.fit_texts.teacher_vectors`)
WORK/texts/held-out/      those of the texts that are never trained on
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, cast

import numpy as np
from accelerate import Accelerator

from lightretriever.artifacts.dtypes import Float16Array, Int64Array, IntegerArray
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.encoder import Encoder
from lightretriever.artifacts.pipeline.fit_texts import teacher_vectors
from lightretriever.artifacts.pipeline.model import CHARS_PER_TOKEN, Backbone
from lightretriever.artifacts.training.documents import MappedTexts
from lightretriever.artifacts.training.recipe import TrainRecipe
from lightretriever.artifacts.training.types import TextBatch, TrainingSet

__all__ = ["BLOCK", "TaughtTexts", "cut"]

BLOCK: Final = 2048
"""Texts that are drawn and encoded together."""

_LEAST_APART: Final = 2  # so that each has a neighbour

# What a random number is for.
_HELD_OUT, _BLOCK_OF = range(2)


class TaughtTexts:
    """Draws the texts of any step from the sets by their weights, cut to their length, with the teacher's vectors.

    Block k of the texts is a function of the seed and k alone. The teacher reads a block when its first text is asked
    for, and the same part of a text as the model does.
    """

    def __init__(
        self,
        backbone: Backbone,
        teacher: Encoder,
        sets: Sequence[TrainingSet],
        recipe: TrainRecipe,
        accelerator: Accelerator,
    ) -> None:
        """Raises ValueError for a recipe without a teacher, and RecipeError for sets of too few texts. Reading raises
        ResumeError where the work directory holds vectors of another teacher."""
        if recipe.teacher is None:
            raise ValueError("the recipe has no teacher")
        self._backbone, self._teacher, self._accelerator = backbone, teacher, accelerator
        self._settings, self._seed, self._folder = recipe.teacher, recipe.seed % 2**64, recipe.work / "texts"
        self._shares = np.array([one.weight for one in sets]) / sum(one.weight for one in sets)
        self._documents = [cast(MappedTexts, one.documents) for one in sets]  # as `prepare` made them
        distinct = [_distinct(documents) for documents in self._documents]
        apart: dict[str, None] = {}  # a text may be in several sets
        for number, (places, _) in enumerate(distinct):
            random = np.random.default_rng((self._seed, _HELD_OUT, number))
            drawn = random.permutation(len(places))[: min(recipe.teacher.held_out, len(places) // 10)]
            apart |= dict.fromkeys(self._documents[number].text(place) for place in places[np.sort(drawn)].tolist())
        self._apart = list(apart)
        keys = np.fromiter(map(_key, apart), np.uint64, len(apart))
        self._trained = [places[~np.isin(known, keys)] for places, known in distinct]
        if len(self._apart) < _LEAST_APART:
            raise RecipeError(
                f"data.sets: {len(self._apart)} texts can be held out, a tenth of each set at most; {_LEAST_APART} are "
                "needed.",
                remedy="Give sets of more texts, or raise teacher.held_out.",
            )
        for one, trained in zip(sets, self._trained, strict=True):
            if not len(trained):
                raise RecipeError(
                    f"data.sets: all texts of the set {one.name} are held out of others.", remedy="Leave the set out."
                )
        self._blocks = recipe.teacher.blocks
        self.block = lru_cache(maxsize=self._blocks or 2)(self._block)  # a batch may lie in two neighbouring blocks

    @property
    def longest(self) -> int:
        """The most tokens of a text, special tokens included."""
        return max(self._settings.length, self._settings.long_length)

    def batch(self, first: int, size: int) -> TextBatch:
        """`size` texts from number `first` on."""
        numbers = (
            index if self._blocks is None else index % (self._blocks * BLOCK) for index in range(first, first + size)
        )
        places = [divmod(number, BLOCK) for number in numbers]
        texts = [self.block(block)[0][place] for block, place in places]
        vectors = [self.block(block)[1][place] for block, place in places]
        return TextBatch(texts, np.stack(vectors).astype(np.float32))

    def _block(self, number: int) -> tuple[list[str], Float16Array]:
        """The texts of a block and the teacher's vectors (n, D), L2-normalised."""
        return self._taught(self._drawn(number), f"block-{number:05d}")

    def held_out(self) -> tuple[list[str], Float16Array]:
        """The texts that are never trained on, cut to the common length, and their vectors."""
        return self._taught(cut(self._backbone, self._apart, [self._settings.length] * len(self._apart)), "held-out")

    def _taught(self, texts: list[str], folder: str) -> tuple[list[str], Float16Array]:
        with self._accelerator.main_process_first():
            return texts, teacher_vectors(self._teacher, texts, None, self._folder / folder)

    def _drawn(self, number: int) -> list[str]:
        random = np.random.default_rng((self._seed, _BLOCK_OF, number))
        drawn = random.choice(len(self._shares), size=BLOCK, p=self._shares).tolist()
        places = random.random(BLOCK).tolist()
        is_long = random.random(BLOCK) < self._settings.long_share
        lengths = np.where(is_long, self._settings.long_length, self._settings.length).tolist()
        chosen = [
            self._documents[number].text(int(self._trained[number][int(place * len(self._trained[number]))]))
            for number, place in zip(drawn, places, strict=True)
        ]
        return cut(self._backbone, chosen, lengths)


def _distinct(documents: MappedTexts) -> tuple[Int64Array, IntegerArray]:
    """The places of the first document with each text, (n,) int64 ascending, and the texts' hashes (n,) uint64."""
    keys = np.fromiter(map(_key, documents.values()), np.uint64, len(documents))
    places = np.sort(np.unique(keys, return_index=True)[1])
    return places, keys[places]


def _key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def cut(backbone: Backbone, texts: Sequence[str], lengths: Sequence[int]) -> list[str]:
    """The parts of texts that the model reads where documents have so many tokens, special tokens included."""
    bounded = [text[: CHARS_PER_TOKEN * length] for text, length in zip(texts, lengths, strict=True)]
    rooms = [length - len(backbone.prefix()) - 1 for length in lengths]
    read = zip(bounded, backbone.tokenizer.spans_of(bounded), rooms, strict=True)
    return [text if len(spans) <= room else text[: spans[room - 1][2]] for text, spans, room in read]
