"""Contrastive training of the dense and the sparse side together."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import torch

from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.pipeline.language_model import instruction_prefix, sparse_weights
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states, token_states
from lightretriever.artifacts.training.engine import Chunk, Engine
from lightretriever.artifacts.training.losses import (
    BatchLayout,
    TokenWeights,
    contrastive_objective,
    cosine_scores,
    query_means,
    sparse_scores,
)
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe
from lightretriever.artifacts.training.teachers import Teachers
from lightretriever.artifacts.training.types import Batch, StepContext, Tensors

__all__ = ["ROW_TOKENS", "Contrastive", "corpus_scores", "document_outputs"]

ROW_TOKENS: Final = 256
"""Positions of a row of packed texts."""

_DOCUMENTS, _TOKENS = 64, 4096  # read at once where all documents are scored
_TOP_K: Final = 128  # an untrained model gives every document most of the vocabulary


class Contrastive:
    """The objective of `ContrastiveStage`. `weights` lie on the model's device."""

    def __init__(
        self,
        engine: Engine,
        backbone: Backbone,
        stage: ContrastiveStage,
        data: DataRecipe,
        weights: TokenWeights,
        teachers: Teachers | None = None,
    ) -> None:
        longest = max(stage.matryoshka, default=0)
        if longest > backbone.vector_size:
            raise RecipeError(
                f"matryoshka asks for {longest} dimensions, but {backbone.name} has {backbone.vector_size}.",
                remedy="Leave the dimension out.",
            )
        self._engine, self._backbone, self._stage, self._data, self._weights = engine, backbone, stage, data, weights
        self._teachers = teachers

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss."""
        names = list(dict.fromkeys(name for candidates in batch.candidates for name in candidates))
        layout, sequences, read = _tokenise(self._backbone, batch, names, self._data)
        chunks = list(self._chunks(batch, layout, sequences, read))
        logits = None if self._teachers is None else torch.from_numpy(self._teachers.logits(batch, names))

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            return contrastive_objective(leaves, layout, self._stage, self._weights, context, logits)

        return self._engine.backward(chunks, context, objective)

    def _chunks(
        self, batch: Batch, layout: BatchLayout, sequences: list[list[int]], read: list[list[int]]
    ) -> Iterator[Chunk]:
        """This process' forward passes: query tokens, documents and, where wanted, whole queries."""
        backbone, rows = self._backbone, ROW_TOKENS
        prefixes = [instruction_prefix(backbone, instruction) for instruction in batch.set.instructions]
        asked = torch.tensor(batch.instructions)
        whole = [[*prefixes[n], *query, backbone.eos_id] for n, query in zip(batch.instructions, read, strict=True)]

        def tokens_of(part: slice) -> Tensors:
            ids = layout.tokens[part]

            def states(prefix: list[int], chosen: torch.Tensor) -> torch.Tensor:
                return token_states(backbone, prefix, ids[chosen], max(1, (rows - len(prefix)) // 2))

            return {"tokens": _by_instruction(layout.instructions[part], prefixes, states)}

        def documents_of(part: slice) -> Tensors:
            return document_outputs(backbone, sequences[part], rows)

        def queries_of(part: slice) -> Tensors:
            def states(prefix: list[int], chosen: torch.Tensor) -> torch.Tensor:
                own = [whole[part][place] for place in chosen.tolist()]
                return packed_states(backbone, own, rows).dense(backbone, len(prefix))

            return {"full_dense": _by_instruction(asked[part], prefixes, states)}

        kinds = [
            ("different query tokens", [2] * len(layout.tokens), tokens_of),
            ("different documents", [len(one) for one in sequences], documents_of),
        ]
        if self._stage.full_kl > 0:
            kinds.append(("queries", [len(one) for one in whole], queries_of))
        for items, lengths, run in kinds:
            yield from self._engine.chunks(lengths, run, items=items, setting="stages[].batch_size")


def document_outputs(backbone: Backbone, sequences: list[list[int]], row_tokens: int) -> Tensors:
    """`dense` (n, D) and `sparse` (n, V) of framed documents."""
    packed = packed_states(backbone, sequences, row_tokens)
    spans = backbone.sparse_spans(packed.spans)
    return {"dense": packed.dense(backbone), "sparse": sparse_weights(packed.hidden, backbone.head, spans)}


def corpus_scores(
    backbone: Backbone,
    instruction: str,
    queries: Iterable[str],
    documents: Iterable[str],
    max_length: int,
    weights: TokenWeights,
) -> Iterator[Tensors]:
    """Scores of B queries for all documents, n at a time: `dense` and `sparse` (B, n) float32 on the model's device.

    Documents keep their 128 strongest terms, as in an index. Run it by `Engine.evaluate`, without gradients.
    """
    ids = [torch.from_numpy(query).long() for query in backbone.tokenizer.as_queries(queries)]
    prefix = instruction_prefix(backbone, instruction)
    tokens, places = torch.cat(ids).unique(return_inverse=True)
    states = torch.cat([token_states(backbone, prefix, part).float() for part in tokens.split(_TOKENS)])
    if weights.rows is not None:
        states = states * weights.rows[tokens.to(backbone.device)][:, None]
    means, texts = query_means(states, places.split([len(query) for query in ids])), iter(documents)
    while part := list(islice(texts, _DOCUMENTS)):
        made = document_outputs(backbone, backbone.document_ids(part, max_length), ROW_TOKENS)
        strongest, terms = made["sparse"].topk(min(_TOP_K, made["sparse"].shape[1]), dim=1)
        kept = torch.zeros_like(made["sparse"]).scatter(1, terms, strongest)
        with torch.autocast(backbone.device.type, enabled=False):  # bfloat16 would make many scores equal
            scores = {"dense": cosine_scores(means, made["dense"]), "sparse": sparse_scores(ids, kept, weights.idf)}
        yield scores


def _by_instruction(
    numbers: torch.Tensor, prefixes: list[list[int]], states: Callable[[list[int], torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Rows (n, D) in order, made by one call of `states` for each instruction, with the places (m,) of its rows."""
    places = [(numbers == number).nonzero()[:, 0] for number in numbers.unique().tolist()]
    made = [states(prefixes[int(numbers[chosen[0]])], chosen) for chosen in places]
    return torch.cat(made)[torch.cat(places).argsort().to(made[0].device)]


def _tokenise(
    backbone: Backbone, batch: Batch, names: list[str], data: DataRecipe
) -> tuple[BatchLayout, list[list[int]], list[list[int]]]:
    """The batch, whose documents are `names`, as token ids: its layout, the framed documents, and the queries' ids as
    the whole model reads them.

    Raises CorpusError for a query without tokens.
    """
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
