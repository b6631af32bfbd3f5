"""Rows for the tokens of a model, fitted to a bi-encoder: what the model's own token vectors are to become.

A row per token of the *model's* vocabulary, in the bi-encoder's space, so that the mean of a query's rows points where
the bi-encoder puts the query. The texts that they are fitted on are queries of the training sets and blocks of their
documents.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.files.arrays import read_array
from lightretriever.artifacts.files.workdir import check_plan
from lightretriever.artifacts.pipeline.biencoder import BiEncoder
from lightretriever.artifacts.pipeline.bm25_impacts import count_tokens
from lightretriever.artifacts.pipeline.distil import Bags, initial_rows, train_table, write_table
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.recipe import TokenRegression
from lightretriever.artifacts.training.texts import TaughtTexts, kept_vectors
from tokenizers import Tokenizer

__all__ = ["TokenRows", "fit_rows", "token_texts"]


@dataclass(frozen=True)
class TokenRows:
    """Rows (V, D) float32, and how often each token is to be drawn, (V,) float64 with the sum 1."""

    rows: torch.Tensor
    shares: npt.NDArray[np.float64]

    @property
    def scale(self) -> float:
        """The mean squared length of a drawn row."""
        return float(self.shares @ self.rows[: len(self.shares)].square().sum(dim=1).double().numpy())

    def drawn(self, count: int, seed: Sequence[int]) -> torch.Tensor:
        """`count` different tokens (n,) int64."""
        random = np.random.default_rng(list(seed))
        count = min(count, int(np.count_nonzero(self.shares)))
        return torch.from_numpy(random.choice(len(self.shares), size=count, replace=False, p=self.shares))


def fit_rows(
    backbone: Backbone,
    teacher: BiEncoder,
    texts: TaughtTexts,
    queries: list[str],
    settings: TokenRegression,
    folder: Path,
) -> TokenRows:
    """Fit the rows once; a later call with the same arguments reads them from `folder`.

    Tokens are drawn by the square root of their frequency in the texts; those that are in no text have the row that
    the bi-encoder gives the token by itself. Raises RecipeError where the texts are too few, and ResumeError where the
    folder holds rows of others.
    """
    tokenizer = backbone.tokenizer
    blocks = [texts.block(number) for number in range(settings.blocks)]
    documents = np.concatenate([vectors for _, vectors in blocks])
    digest = hashlib.sha256(json.dumps([*queries, *(text for part, _ in blocks for text in part)]).encode())
    plan = {"teacher": teacher.fingerprint, "tokenizer": tokenizer.sha256, "texts": digest.hexdigest()}
    check_plan(folder / "plan.json", {**plan, "settings": settings.model_dump(mode="json", exclude={"weight"})})
    bags = tokenizer.encode_batch([text for part, _ in blocks for text in part])
    asked = tokenizer.encode_batch(queries)
    statistics = count_tokens([*bags, *asked], backbone.vocab_size)
    file = folder / "table.npy"
    if not file.is_file():
        encode, of = teacher.encode_queries, teacher.fingerprint
        singles = kept_vectors(encode, token_texts(backbone), of, folder / "singles", "tokens")
        initial = initial_rows(singles.astype(np.float32), statistics)
        targets = np.concatenate([documents, kept_vectors(encode, queries, of, folder / "queries", "queries")])
        whole = [*bags, *asked]
        order = np.random.default_rng(settings.fit.seed).permutation([n for n, ids in enumerate(whole) if len(ids)])
        held_out = min(settings.fit.held_out, len(order) // 10)
        fitted = train_table(
            initial, Bags.of([whole[n] for n in order]), targets[order], documents, settings.fit, held_out
        )
        write_table(file, fitted)
    frequencies = np.sqrt(statistics.frequencies[: backbone.embedded].astype(np.float64))
    return TokenRows(torch.from_numpy(read_array(file)), frequencies / frequencies.sum())


def token_texts(backbone: Backbone) -> list[str]:
    """Every token of the vocabulary as text, (V,)."""
    tokenizer = Tokenizer.from_buffer(backbone.tokenizer_json)
    return [text.strip() for text in tokenizer.decode_batch([[token] for token in range(backbone.vocab_size)])]
