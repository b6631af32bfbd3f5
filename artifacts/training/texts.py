"""Texts with the vectors that a teacher gives them: what a regression stage learns from, drawn and encoded in blocks.

WORK/texts/block-00000/   the teacher's vectors of a block of texts (see `artifacts.pipeline.fit_texts.teacher_vectors`)
WORK/texts/held-out/      those of the texts that are never trained on
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.pipeline.encoder import Encoder
from lightretriever.artifacts.pipeline.fit_texts import teacher_vectors
from lightretriever.artifacts.pipeline.model import CHARS_PER_TOKEN, Backbone
from lightretriever.artifacts.training.processes import Processes
from lightretriever.artifacts.training.recipe import TrainRecipe
from lightretriever.artifacts.training.types import TextBatch, TrainingSet

__all__ = ["BLOCK", "TaughtTexts", "cut"]

BLOCK: Final = 2048
"""Texts that are drawn and encoded together."""

# What a random number is for.
_HELD_OUT, _BLOCK_OF = range(2)


@dataclass(frozen=True)
class _Pool:
    """The texts of a set that are trained on, and those that are held out."""

    share: float
    trained: list[str]
    held_out: list[str]


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
        processes: Processes,
    ) -> None:
        """Raises ValueError for a recipe without a teacher. Reading raises ResumeError where the work directory holds
        vectors of other texts or of another teacher."""
        if recipe.teacher is None:
            raise ValueError("the recipe has no teacher")
        self._backbone, self._teacher, self._processes = backbone, teacher, processes
        self._settings, self._seed, self._folder = recipe.teacher, recipe.seed % 2**64, recipe.work / "texts"
        total = sum(one.weight for one in sets)
        self._pools = {one.name: self._pool(one, one.weight / total, number) for number, one in enumerate(sets)}
        self._blocks: dict[int, tuple[list[str], npt.NDArray[np.float16]]] = {}

    @property
    def longest(self) -> int:
        """The most tokens of a text, special tokens included."""
        return max(self._settings.length, self._settings.long_length)

    def batch(self, first: int, size: int) -> TextBatch:
        """`size` texts from number `first` on."""
        texts: list[str] = []
        vectors: list[npt.NDArray[np.float16]] = []
        for index in range(first, first + size):
            block, place = divmod(index, BLOCK)
            of_block = self.block(block)
            texts.append(of_block[0][place])
            vectors.append(of_block[1][place])
        return TextBatch(texts, np.stack(vectors).astype(np.float32))

    def block(self, number: int) -> tuple[list[str], npt.NDArray[np.float16]]:
        """The texts of a block and the teacher's vectors (n, D), L2-normalised."""
        if number not in self._blocks:
            texts = self._drawn(number)
            vectors = self._vectors(texts, f"block-{number:05d}")
            # A batch may lie in two neighbouring blocks.
            self._blocks = {key: self._blocks[key] for key in (number - 1, number + 1) if key in self._blocks}
            self._blocks[number] = texts, vectors
        return self._blocks[number]

    def held_out(self) -> tuple[dict[str, list[str]], npt.NDArray[np.float16]]:
        """The texts of each set that are never trained on, cut to the common length, and their vectors in order."""
        texts = {
            name: [cut(self._backbone, text, self._settings.length) for text in pool.held_out]
            for name, pool in self._pools.items()
        }
        flat = [text for part in texts.values() for text in part]
        return texts, self._vectors(flat, "held-out")

    def _pool(self, one: TrainingSet, share: float, number: int) -> _Pool:
        texts = list(dict.fromkeys(one.documents.values()))
        random = np.random.default_rng((self._seed, _HELD_OUT, number))
        apart = set(random.permutation(len(texts))[: min(self._settings.held_out, len(texts) // 10)].tolist())
        return _Pool(
            share,
            [text for place, text in enumerate(texts) if place not in apart],
            [texts[place] for place in sorted(apart)],
        )

    def _drawn(self, number: int) -> list[str]:
        random = np.random.default_rng((self._seed, _BLOCK_OF, number))
        pools = list(self._pools.values())
        drawn = random.choice(len(pools), size=BLOCK, p=[pool.share for pool in pools]).tolist()
        places = random.random(BLOCK).tolist()
        is_long = random.random(BLOCK) < self._settings.long_share
        lengths = np.where(is_long, self._settings.long_length, self._settings.length).tolist()
        return [
            cut(self._backbone, pools[pool].trained[int(place * len(pools[pool].trained))], length)
            for pool, place, length in zip(drawn, places, lengths, strict=True)
        ]

    def _vectors(self, texts: list[str], name: str) -> npt.NDArray[np.float16]:
        folder = self._folder / name
        return self._processes.in_turn(lambda: teacher_vectors(self._teacher, texts, None, folder))


def cut(backbone: Backbone, text: str, length: int) -> str:
    """The part of a text that the model reads where documents have `length` tokens, special tokens included."""
    text = text[: CHARS_PER_TOKEN * length]
    spans = backbone.tokenizer.spans(text)
    room = length - len(backbone.prefix()) - 1
    return text if len(spans) <= room else text[: spans[room - 1][2]]
