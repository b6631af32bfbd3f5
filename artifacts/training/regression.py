"""Regression on a teacher: document vectors follow those of a bi-encoder, and token vectors follow fitted rows.

    s = the model's vector of a text (its pooled states through one linear map),  y = the teacher's, of length 1

    loss = mean (1 - cos(s, y)) + similarity · KL(softmax_j(y_i·y_j / τ) ‖ softmax_j(y_i·ŝ_j / τ))
           + tokens.weight · mean (1 - cos(e, r) + (|e| - |r|)² / mean |r|²)

e is a token's vector behind an instruction, r its fitted row. Neither labels nor negatives are needed: a text has as
many targets as the teacher's vector has values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from lightretriever.artifacts.dtypes import FloatArray
from lightretriever.artifacts.pipeline.language_model import instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states, token_states
from lightretriever.artifacts.training.adapter import Adapter
from lightretriever.artifacts.training.contrastive import ROW_TOKENS
from lightretriever.artifacts.training.engine import Chunk, Engine
from lightretriever.artifacts.training.losses import row_loss, similarity_loss
from lightretriever.artifacts.training.recipe import RegressionStage
from lightretriever.artifacts.training.texts import TaughtTexts
from lightretriever.artifacts.training.token_rows import TokenRows
from lightretriever.artifacts.training.types import StepContext, Tensors, TextBatch

__all__ = ["Regression", "fit_projection"]

_EVALUATED = 32
_NEIGHBOURS = 10
_RIDGE = 0.01  # of the mean square of a state's value


class Regression:
    """The objective of `RegressionStage`, on texts from number `first` on.

    `rows` are for token vectors, None where the stage has none; one of `instructions` is drawn for each step.
    """

    def __init__(
        self,
        engine: Engine,
        adapter: Adapter,
        stage: RegressionStage,
        texts: TaughtTexts,
        first: int,
        rows: TokenRows | None,
        instructions: Sequence[str],
    ) -> None:
        self._engine, self._adapter, self._stage, self._texts = engine, adapter, stage, texts
        self._first, self._longest = first, texts.longest
        self._rows, self._instructions = rows, list(instructions)
        self.every = stage.every

    def batch(self, number: int) -> TextBatch:
        """The texts of a batch, with their targets."""
        return self._texts.batch(self._first + number * self._stage.batch_size, self._stage.batch_size)

    def backward(self, batch: TextBatch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss and the norm of each one's gradient."""
        backbone, stage, rows = self._adapter.backbone, self._stage, ROW_TOKENS
        sequences = backbone.document_ids(batch.texts, self._longest)
        targets = torch.from_numpy(batch.targets).to(backbone.device)

        def documents_of(part: slice) -> Tensors:
            return {"documents": packed_states(backbone, sequences[part], rows).dense(backbone)}

        lengths = [len(one) for one in sequences]
        chunks = list(self._engine.chunks(lengths, documents_of, items="texts", setting="stages[].batch_size"))
        drawn, tokens = None, stage.tokens
        if self._rows is not None and tokens is not None:
            drawn = self._rows.drawn(tokens.count, (context.seed % 2**64, context.batch))
            chunks += self._token_chunks(drawn, context)

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            documents = leaves["documents"].float()
            losses = {
                "cosine": (1 - functional.cosine_similarity(documents, targets, dim=1)).mean(),
                "similarity": stage.similarity * similarity_loss(documents, targets, stage.temperature),
            }
            if drawn is None or self._rows is None or tokens is None:
                return losses, {}
            wanted = self._rows.rows[drawn].to(backbone.device)
            direction, length = row_loss(leaves["tokens"].float(), wanted, self._rows.scale)
            losses["rows"] = tokens.weight * (direction + length)
            return losses, {"row_cosine": 1 - float(direction.detach()), "row_length": float(length.detach())}

        return self._engine.backward(chunks, context, objective)

    def _token_chunks(self, drawn: torch.Tensor, context: StepContext) -> Iterator[Chunk]:
        """This process' forward passes of tokens, behind an instruction drawn for the step."""
        backbone = self._adapter.backbone
        random = np.random.default_rng((context.seed % 2**64, context.batch, 1))
        prefix = instruction_prefix(backbone, self._instructions[int(random.integers(len(self._instructions)))])
        blocks = max(1, (ROW_TOKENS - len(prefix)) // 2)

        def tokens_of(part: slice) -> Tensors:
            return {"tokens": token_states(backbone, prefix, drawn[part], blocks)}

        return self._engine.chunks([2] * len(drawn), tokens_of, items="drawn tokens", setting="stages[].tokens.count")

    def held_out(self) -> dict[str, float]:
        """How well vectors of texts that are never trained on agree with the teacher's: the mean cosine, and the share
        of the teacher's first ten neighbours that are among the model's first ten."""
        backbone = self._adapter.backbone
        texts, targets = self._texts.held_out()
        made = self._engine.evaluate(lambda: _vectors(backbone, texts, self._longest))
        ours = functional.normalize(made, dim=1)
        theirs = functional.normalize(torch.from_numpy(targets.astype(np.float32)), dim=1)
        # A text of the teacher's space looks for the others, as a query would.
        k = min(_NEIGHBOURS, len(texts) - 1)
        first, second = (
            (theirs @ documents.T).fill_diagonal_(-2).topk(k, dim=1).indices for documents in (theirs, ours)
        )
        overlap = float((first[:, :, None] == second[:, None, :]).any(dim=2).float().mean())
        return {"cosine": float((ours * theirs).sum(dim=1).mean()), "overlap": overlap}


def fit_projection(backbone: Backbone, texts: Sequence[str], targets: FloatArray, length: int) -> torch.Tensor:
    """The linear map (D, H) float32 from the model's states of `texts` to `targets` (n, D), by ridge regression.

    Training begins with it: the map that fits the model as it is.
    """
    states = _vectors(replace(backbone, projection=None), texts, length).double()
    square = states.T @ states
    square += _RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
    solved: torch.Tensor = torch.linalg.solve(square, states.T @ torch.from_numpy(targets).double())
    return solved.T.float().contiguous()


def _vectors(backbone: Backbone, texts: Sequence[str], length: int) -> torch.Tensor:
    """The model's dense vectors of texts, (n, D) float32 on the CPU."""
    sequences = backbone.document_ids(texts, length)
    found = [
        packed_states(backbone, sequences[start : start + _EVALUATED], 256).dense(backbone).float().cpu()
        for start in range(0, len(sequences), _EVALUATED)
    ]
    return torch.cat(found)
