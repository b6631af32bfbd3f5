"""Contrastive training of the dense and the sparse side together."""

from collections.abc import Iterator

import torch

from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.pipeline.language_model import instruction_prefix, sparse_weights
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states, token_states
from lightretriever.artifacts.training.engine import Chunk, Engine
from lightretriever.artifacts.training.losses import BatchLayout, TokenWeights, contrastive_objective
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe, StageBase
from lightretriever.artifacts.training.types import Batch, StepContext, Tensors

__all__ = ["Contrastive", "document_outputs", "piece_sizes"]


class Contrastive:
    """The objective of `ContrastiveStage`. `weights` lie on the model's device."""

    def __init__(
        self, engine: Engine, backbone: Backbone, stage: ContrastiveStage, data: DataRecipe, weights: TokenWeights
    ) -> None:
        longest = max(stage.matryoshka, default=0)
        if longest > backbone.vector_size:
            raise RecipeError(
                f"matryoshka asks for {longest} dimensions, but {backbone.name} has {backbone.vector_size}.",
                remedy="Leave the dimension out.",
            )
        self._engine, self._backbone, self._stage, self._data, self._weights = engine, backbone, stage, data, weights
        self._chunk_tokens, self._row_tokens = piece_sizes(stage, backbone.device)

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss."""
        layout, sequences, read = _tokenise(self._backbone, batch, self._data)
        chunks = list(self._chunks(layout, sequences, read, batch.set.instruction))

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            return contrastive_objective(leaves, layout, self._stage, self._weights, context)

        return self._engine.backward(chunks, self._chunk_tokens, context, objective)

    def _chunks(
        self, layout: BatchLayout, sequences: list[list[int]], read: list[list[int]], instruction: str
    ) -> Iterator[Chunk]:
        """This process' forward passes: query tokens, documents and, where wanted, whole queries."""
        backbone, rows = self._backbone, self._row_tokens
        prefix = instruction_prefix(backbone, instruction)
        blocks = max(1, (rows - len(prefix)) // 2)

        whole = [[*prefix, *query, backbone.eos_id] for query in read]

        def tokens_of(part: slice) -> Tensors:
            return {"tokens": token_states(backbone, prefix, layout.tokens[part], blocks)}

        def documents_of(part: slice) -> Tensors:
            return document_outputs(backbone, sequences[part], rows)

        def queries_of(part: slice) -> Tensors:
            return {"full_dense": packed_states(backbone, whole[part], rows).dense(backbone, len(prefix))}

        kinds = [
            ("different query tokens", [2] * len(layout.tokens), tokens_of),
            ("different documents", [len(one) for one in sequences], documents_of),
        ]
        if self._stage.full_kl > 0:
            kinds.append(("queries", [len(one) for one in whole], queries_of))
        for items, lengths, run in kinds:
            yield from self._engine.chunks(lengths, self._chunk_tokens, run, items=items, setting="stages[].batch_size")


def piece_sizes(stage: StageBase, device: torch.device) -> tuple[int, int]:
    """Positions whose graphs are held at once, the stage's or by device, and positions of a row of packed texts."""
    return stage.chunk_tokens or (65_536 if device.type == "cuda" else 8_192), 256


def document_outputs(backbone: Backbone, sequences: list[list[int]], row_tokens: int) -> Tensors:
    """`dense` (n, D) and `sparse` (n, V) of framed documents."""
    packed = packed_states(backbone, sequences, row_tokens)
    spans = backbone.sparse_spans(packed.spans)
    return {"dense": packed.dense(backbone), "sparse": sparse_weights(packed.hidden, backbone.head, spans)}


def _tokenise(
    backbone: Backbone, batch: Batch, data: DataRecipe
) -> tuple[BatchLayout, list[list[int]], list[list[int]]]:
    """The batch as token ids: its layout, the framed documents, and the queries' ids as the whole model reads them.

    Raises CorpusError for a query without tokens.
    """
    names = list(dict.fromkeys(name for candidates in batch.candidates for name in candidates))
    texts = [batch.set.documents[name] for name in names]
    asked = [example.query for example in batch.examples]
    queries, read = (
        [ids[: data.max_query_length].tolist() for ids in found]
        for found in (backbone.tokenizer.as_queries(asked), backbone.tokenizer.encode_batch(asked))
    )
    for example, ids in zip(batch.examples, queries, strict=True):
        if not ids:
            raise CorpusError(f'{batch.set.name}: query "{example.query_id}" has no tokens.', remedy="Remove it.")
    sequences = backbone.document_ids(texts, data.max_document_length)
    return BatchLayout.of(batch, names, texts, queries), sequences, read
