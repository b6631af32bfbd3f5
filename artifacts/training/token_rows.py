"""Rows for the tokens of a model, fitted to a bi-encoder: what the model's own token vectors are to become.

A row per token of the *model's* vocabulary, in the bi-encoder's space, so that the mean of a query's rows points where
the bi-encoder puts the query. The texts that they are fitted on are queries of the training sets and blocks of their
documents.

WORK/rows/DIGEST/plan.json    what the rows were fitted to; DIGEST is that of the settings, which stages may share
WORK/rows/DIGEST/table.npy    the rows (V, D) float32
WORK/rows/queries/            the bi-encoder's vectors of queries
WORK/rows/singles/            those of single tokens
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from lightretriever.artifacts.dtypes import Float16Array, Float64Array
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.files.workdir import check_plan
from lightretriever.artifacts.pipeline.encoder import Encoder
from lightretriever.artifacts.pipeline.fit import FitTexts, distinct_rows, fit_table
from lightretriever.artifacts.pipeline.fit_texts import teacher_vectors
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.rows import Rows
from lightretriever.artifacts.tokens.idf import count_tokens
from lightretriever.artifacts.training.recipe import TokenRegression
from lightretriever.artifacts.training.types import QUERY_TOKENS

__all__ = ["TokenRows", "fit_rows", "token_texts"]


@dataclass(frozen=True)
class TokenRows:
    """Rows (V, D) float32, and how often each token is to be drawn, (V,) float64 with the sum 1."""

    rows: torch.Tensor
    shares: Float64Array

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
    teacher: Encoder,
    blocks: Sequence[tuple[list[str], Float16Array]],
    queries: list[str],
    settings: TokenRegression,
    work: Path,
) -> TokenRows:
    """Fit the rows once, to `blocks` of texts with their vectors and to queries; a later call with the same arguments
    reads them from `work`.

    Tokens are drawn by the square root of their frequency in the texts; those that are in no text have the row that
    the bi-encoder gives the token by itself. Raises RecipeError where the texts are too few, and ResumeError where
    `work` holds rows that were fitted to other texts or other tokens of queries by the same settings, or vectors of
    another bi-encoder.
    """
    documents = np.concatenate([vectors for _, vectors in blocks])
    texts = [text for part, _ in blocks for text in part]
    bags = [*backbone.tokenizer.encode_batch(texts), *backbone.tokenizer.as_queries(queries)]
    statistics = count_tokens(bags, backbone.vocab_size)
    fit = settings.model_dump(mode="json", include={"queries", "blocks", "fit"})
    folder = work / _digest(fit)[:16]
    check_plan(folder / "plan.json", {**fit, "query_tokens": QUERY_TOKENS, "texts": _digest([*texts, *queries])})
    file = folder / "table.npy"
    if not file.is_file():
        asked = teacher_vectors(teacher, queries, "", work / "queries")
        singles = teacher_vectors(teacher, token_texts(backbone), "", work / "singles").astype(np.float32)
        targets = np.concatenate([documents, asked])
        order = np.random.default_rng(settings.fit.seed).permutation([n for n, ids in enumerate(bags) if len(ids)])
        held_out = min(settings.fit.held_out, len(order) // 10)
        fitted = FitTexts(Rows.of([bags[n] for n in order]), targets[order], documents, held_out)
        write_array(file, fit_table(distinct_rows(singles, statistics), fitted, settings.fit, backbone.device).rows)
    frequencies = np.sqrt(statistics.frequencies[: backbone.embedded].astype(np.float64))
    return TokenRows(torch.from_numpy(read_array(file)), frequencies / frequencies.sum())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def token_texts(backbone: Backbone) -> list[str]:
    """Every token of the vocabulary as text, (V,)."""
    tokenizer = Tokenizer.from_buffer(backbone.tokenizer_json)
    return [text.strip() for text in tokenizer.decode_batch([[token] for token in range(backbone.vocab_size)])]
