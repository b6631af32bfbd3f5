"""Query-likelihood warm-up: the model learns to write a query from the state at the document's end alone.

One text per pair, `[bos] I1 d̃ I2 [E] q`, with [E] the model's end token, where document vectors are taken as well.
d̃ is the document with tokens masked at random. What stands after [E] doesn't see what stands before it, neither the
document nor the texts around it, so all that the query can be written from has to pass through [E].
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.encode import length_sorted_batches
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.sparse_head import SLICE_ELEMENTS
from lightretriever.artifacts.pipeline.states import attention_masks
from lightretriever.artifacts.training.recipe import DataRecipe, QueryLikelihoodStage
from lightretriever.artifacts.training.types import Batch, StepContext, query_ids
from torch.nn import functional

__all__ = ["QueryLikelihood", "attention_block", "corrupt"]

INTRODUCTION = "Passage: "
REQUEST = "\nA search query that this passage answers: "
#: Stands for a masked document token. Decoder LLMs have no [MASK]; this sign is ordinary text that all of them know.
MASKED = "_"


@dataclass(frozen=True)
class _Pair:
    """`ids` is `[bos] I1 d̃ I2 [E] q` without q's last token; the positions from `end`, that of [E], on give `query`."""

    ids: list[int]
    end: int
    query: list[int]


class QueryLikelihood:
    """The objective of `QueryLikelihoodStage`.

    L = (1/B) Σ_pairs (1/n) Σ_i -ln P(q_i | [E], q_1 … q_{i-1}), n being the number of the query's tokens; no end token
    is added to the query. A process computes the pairs rank, rank + world, … of the batch; masks depend on a pair's
    place in the whole batch, so they are the same for any number of processes. Raises RecipeError when the texts may
    get longer than what the model reads.
    """

    def __init__(self, backbone: Backbone, stage: QueryLikelihoodStage, data: DataRecipe) -> None:
        self._backbone, self._data, self._corruption = backbone, data, stage.corruption
        self._chunk_tokens = stage.chunk_tokens or (16_384 if backbone.device.type == "cuda" else 4_096)
        introduction, request, masked = (
            backbone.tokenizer.encode(text).tolist() for text in (INTRODUCTION, REQUEST, MASKED)
        )
        self._head = [*backbone.prefix(), *introduction]
        self._tail = [*request, backbone.eos_id]
        self._masked = masked[-1] if masked else backbone.eos_id
        self._room = data.max_document_length - len(backbone.prefix()) - 1  # what contrastive training reads
        longest = len(self._head) + self._room + len(self._tail) + data.max_query_length - 1
        if backbone.max_positions is not None and longest > backbone.max_positions:
            raise RecipeError(
                f"data.max_document_length is {data.max_document_length} and data.max_query_length "
                f"{data.max_query_length}, which with the texts around them makes {longest} positions; {backbone.name} "
                f"reads {backbone.max_positions}.",
                remedy="Lower one of them.",
            )

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """One step's gradients (see `Objective`). Returns the whole batch's `loss`, and its `tokens` (positions).

        Raises CorpusError for a query without tokens.
        """
        pairs = self._pairs(batch, context)
        # Dropout: the same when a step is run again, another in every step and process.
        torch.manual_seed(hash((context.seed, context.step, context.rank)) & 0x7FFF_FFFF_FFFF_FFFF)
        loss = torch.zeros((), device=self._backbone.device)
        for chunk in length_sorted_batches([pair.ids for pair in pairs], self._chunk_tokens):
            loss += self._chunk([pairs[index] for index in chunk], 1 / len(batch.examples))
        logged = torch.stack([loss, torch.full_like(loss, sum(len(pair.ids) for pair in pairs))])
        total, tokens = context.gather(logged[None]).sum(dim=0).tolist()
        return {"loss": total, "tokens": tokens}

    def _pairs(self, batch: Batch, context: StepContext) -> list[_Pair]:
        """This process' share of the batch as token ids."""
        places = range(context.rank, len(batch.examples), context.world)
        examples = [batch.examples[place] for place in places]
        encode, characters = self._backbone.tokenizer.encode_batch, 64 * self._data.max_document_length
        documents = encode([batch.set.documents[example.positive][:characters] for example in examples])
        queries = query_ids(self._backbone.tokenizer, batch.set.name, examples, self._data.max_query_length)
        pairs = []
        for place, document, query in zip(places, documents, queries, strict=True):
            random = np.random.default_rng([context.seed & 0xFFFF_FFFF_FFFF_FFFF, context.step, place])
            left = corrupt(document[: self._room], self._corruption, self._masked, random)
            before = [*self._head, *left.tolist(), *self._tail]
            pairs.append(_Pair([*before, *query[:-1]], len(before) - 1, query))
        return pairs

    def _chunk(self, pairs: list[_Pair], share: float) -> torch.Tensor:
        """One forward and backward pass; returns `share` times the sum of the pairs' losses, () float32."""
        device = self._backbone.device
        ids = torch.full((len(pairs), max(len(pair.ids) for pair in pairs)), self._backbone.eos_id)
        writes = torch.zeros(ids.shape, dtype=torch.bool)  # the positions that a query token is predicted at
        for row, pair in enumerate(pairs):
            ids[row, : len(pair.ids)] = torch.tensor(pair.ids)
            writes[row, pair.end : len(pair.ids)] = True
        positions = torch.arange(ids.shape[1], device=device).expand(len(pairs), -1)
        visible = attention_block(torch.tensor([pair.end for pair in pairs], device=device), ids.shape[1])
        states: torch.Tensor = self._backbone.decoder(
            input_ids=ids.to(device),
            attention_mask=attention_masks(self._backbone, visible, positions),
            position_ids=positions,
            use_cache=False,
        )[0]
        weights = torch.cat([torch.full((len(pair.query),), share / len(pair.query)) for pair in pairs])
        targets = torch.tensor([token for pair in pairs for token in pair.query])
        return _backward(states[writes.to(device)], self._backbone.head, targets.to(device), weights.to(device))


def attention_block(ends: torch.Tensor, length: int) -> torch.Tensor:
    """What a position (row) sees (column): M_ij = i >= j, and j >= e after e, the place of [E]. (R,) → (R, L, L) bool.

    Up to [E] attention is causal; after it, it begins at [E].
    """
    index = torch.arange(length, device=ends.device)
    after, hidden = index[None] > ends[:, None], index[None] < ends[:, None]
    causal = index[:, None] >= index[None, :]
    return causal[None] & ~(after[:, :, None] & hidden[:, None, :])


def corrupt(
    ids: npt.NDArray[np.int32], probability: float, masked: int, random: np.random.Generator
) -> npt.NDArray[np.int32]:
    """Token ids (n,) with each one replaced by `masked` with the given probability."""
    return np.where(random.random(len(ids)) < probability, np.int32(masked), ids)


def _backward(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of -ln softmax(h·P)[target] over states (N, H), and its gradient, never with (N, V) logits at once.

    The gradient is collected at the states, a slice of them at a time, and sent down the model in one go.
    """
    leaf = states.detach().requires_grad_()
    total = torch.zeros((), device=states.device)
    step = max(1, SLICE_ELEMENTS // head.shape[0])
    for start in range(0, len(leaf), step):
        part = slice(start, start + step)
        losses = functional.cross_entropy((leaf[part] @ head.T).float(), targets[part], reduction="none")
        loss = (losses * weights[part]).sum()
        loss.backward()
        total += loss.detach()
    states.backward(leaf.grad)
    return total
