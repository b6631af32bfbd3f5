"""Contrastive training of the dense and the sparse side together, with gradient caching.

A step needs the representations of the whole batch at once, but not their graphs. It runs in three parts: forward
passes without gradients, a chunk at a time; the loss on all representations, which gives the gradient of each; and
the same forward passes again, now with gradients, each chunk fed with its share. A batch that fits into one chunk keeps
its graph instead. Both ways give the gradients of the plain step. Several processes share the chunks and
exchange representations, so that their gradients add up to those of one process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.pipeline.language_model import instruction_prefix, sparse_weights
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states, token_states
from lightretriever.artifacts.training.losses import BatchLayout, TokenWeights, contrastive_objective
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe, StageBase
from lightretriever.artifacts.training.types import SPARSE_SPACE, Batch, StepContext

__all__ = ["Chunk", "Contrastive", "backward_in_chunks", "cut_chunks", "document_outputs", "piece_sizes"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Chunk:
    """One forward pass: which rows of which representations it gives, and how."""

    rows: slice
    run: Callable[[slice], Tensors]
    tokens: int


class Contrastive:
    """The objective of `ContrastiveStage`. `weights` lie on the model's device."""

    def __init__(self, backbone: Backbone, stage: ContrastiveStage, data: DataRecipe, weights: TokenWeights) -> None:
        longest = max(stage.matryoshka, default=0)
        if longest > backbone.vector_size:
            raise RecipeError(
                f"matryoshka asks for {longest} dimensions, but {backbone.name} has {backbone.vector_size}.",
                remedy="Leave the dimension out.",
            )
        self._backbone, self._stage, self._data, self._weights = backbone, stage, data, weights
        self._chunk_tokens, self._row_tokens = piece_sizes(stage, backbone.device)

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss."""
        layout, sequences, queries = _tokenise(self._backbone, batch, self._data)
        chunks = list(self._chunks(layout, sequences, queries, batch.set.instruction, context))

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            return contrastive_objective(leaves, layout, self._stage, self._weights, context)

        return backward_in_chunks(chunks, self._chunk_tokens, context, self._backbone.device, objective)

    def _chunks(
        self,
        layout: BatchLayout,
        sequences: list[list[int]],
        queries: list[list[int]],
        instruction: str,
        context: StepContext,
    ) -> Iterator[Chunk]:
        """This process' forward passes: query tokens, documents and, where wanted, whole queries."""
        backbone, rows = self._backbone, self._row_tokens
        prefix = instruction_prefix(backbone, instruction)
        blocks = max(1, (rows - len(prefix)) // 2)

        whole = [[*prefix, *query, backbone.eos_id] for query in queries]

        def tokens_of(part: slice) -> Tensors:
            return {"tokens": token_states(backbone, prefix, layout.tokens[part], blocks)}

        def documents_of(part: slice) -> Tensors:
            return document_outputs(backbone, sequences[part], rows)

        def queries_of(part: slice) -> Tensors:
            return {"full_dense": packed_states(backbone, whole[part], rows).dense(backbone, len(prefix))}

        kinds = [([2] * len(layout.tokens), tokens_of), ([len(one) for one in sequences], documents_of)]
        if self._stage.full_kl > 0:
            kinds.append(([len(one) for one in whole], queries_of))
        for lengths, run in kinds:
            yield from cut_chunks(lengths, self._chunk_tokens, run, context)


def piece_sizes(stage: StageBase, device: torch.device) -> tuple[int, int]:
    """Positions whose graphs are held at once, the stage's or by device, and positions of a row of packed texts."""
    return stage.chunk_tokens or (65_536 if device.type == "cuda" else 8_192), 256


def document_outputs(backbone: Backbone, sequences: list[list[int]], row_tokens: int) -> Tensors:
    """`dense` (n, D) and `sparse` (n, V) of framed documents."""
    packed = packed_states(backbone, sequences, row_tokens)
    spans = backbone.sparse_spans(packed.spans)
    return {"dense": packed.dense(backbone), "sparse": sparse_weights(packed.hidden, backbone.head, spans)}


def backward_in_chunks(
    chunks: list[Chunk],
    most: int,
    context: StepContext,
    device: torch.device,
    objective: Callable[[Tensors], tuple[Tensors, dict[str, float]]],
) -> dict[str, float]:
    """Add this process' share of the gradients of the losses that `objective` makes of all chunks' representations;
    returns what is logged.

    Summed over the processes the gradients are those of one process with the whole batch.
    Chunks of at most `most` positions together are run once, more of them twice. The log has each loss, their sum, and
    the norm of each one's gradient at the representations.
    """
    keep = sum(chunk.tokens for chunk in chunks) <= most
    outputs = []
    for number, chunk in enumerate(chunks):
        _seed(context, number)
        with torch.set_grad_enabled(keep):
            outputs.append(chunk.run(chunk.rows))
    leaves = {name: context.gather(part).requires_grad_() for name, part in _joined(outputs).items()}
    with torch.autocast(device.type, enabled=False):
        losses, logged = objective(leaves)
        total = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        for name, loss in losses.items():
            found = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, allow_unused=True)
            parts = {leaf: part for leaf, part in zip(leaves, found, strict=True) if part is not None}
            for leaf, part in parts.items():
                total[leaf] += part
            logged[f"{name}_gradient"] = float(sum(float(part.square().sum()) for part in parts.values()) ** 0.5)
    logged |= {name: float(loss.detach()) for name, loss in losses.items()}
    for number, (chunk, kept) in enumerate(zip(chunks, outputs, strict=True)):
        if not keep:
            _seed(context, number)
            kept = chunk.run(chunk.rows)
        gradients = [total[name][chunk.rows].to(output.dtype) for name, output in kept.items()]
        torch.autograd.backward(list(kept.values()), gradients)
    tokens = float(sum(chunk.tokens for chunk in chunks) * context.world)
    return logged | {"loss": sum(float(loss.detach()) for loss in losses.values()), "tokens": tokens}


def cut_chunks(
    lengths: list[int], chunk_tokens: int, run: Callable[[slice], Tensors], context: StepContext
) -> Iterator[Chunk]:
    """Chunks of this process' share of the items, whose representations `run` makes; rows are numbered over all
    processes' items.

    A process without items would have no tensors to exchange, so a batch needs at least one item for each.
    """
    own = context.share(len(lengths))
    start, end = own.start, own.stop
    while start < end:
        stop, total = start + 1, lengths[start]
        while stop < end and total + lengths[stop] <= chunk_tokens:
            total += lengths[stop]
            stop += 1
        yield Chunk(slice(start, stop), run, total)
        start = stop


def _tokenise(
    backbone: Backbone, batch: Batch, data: DataRecipe
) -> tuple[BatchLayout, list[list[int]], list[list[int]]]:
    """The batch as token ids: its layout, the framed documents, and the queries' ids.

    Raises CorpusError for a query without tokens.
    """
    names = list(dict.fromkeys(name for candidates in batch.candidates for name in candidates))
    texts = [batch.set.documents[name] for name in names]
    queries, sparse = (
        [
            ids[: data.max_query_length].tolist()
            for ids in backbone.tokenizer.encode_batch([before + example.query for example in batch.examples])
        ]
        for before in ("", SPARSE_SPACE)
    )
    for example, ids in zip(batch.examples, queries, strict=True):
        if not ids:
            raise CorpusError(f'{batch.set.name}: query "{example.query_id}" has no tokens.', remedy="Remove it.")
    sequences = backbone.document_ids(texts, data.max_document_length)
    return BatchLayout.of(batch, names, texts, queries, sparse), sequences, queries


def _joined(outputs: list[Tensors]) -> Tensors:
    """The rows of all chunks, by representation, detached from their graphs."""
    names = dict.fromkeys(name for output in outputs for name in output)
    return {name: torch.cat([output[name].detach() for output in outputs if name in output]) for name in names}


def _seed(context: StepContext, number: int) -> None:
    """The same dropout in both passes of a chunk, another one in every chunk, step and process."""
    torch.manual_seed(hash((context.seed, context.step, context.rank, number)) & 0x7FFF_FFFF_FFFF_FFFF)
