"""Contrastive training of the dense and the sparse side together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import torch

from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.pipeline.language_model import instruction_prefix, sparse_weights
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states, token_states
from lightretriever.artifacts.training.engine import Chunk, Engine
from lightretriever.artifacts.training.losses import (
    BatchLayout,
    contrastive_objective,
    cosine_scores,
    query_means,
    sparse_scores,
)
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe
from lightretriever.artifacts.training.teachers import Teachers
from lightretriever.artifacts.training.types import Batch, StepContext, Tensors

ROW_TOKENS: Final = 256
"""Positions of a row of packed texts."""

_DOCUMENTS, _TOKENS = 64, 4096  # read at once where all documents are scored
_TOP_K: Final = 128  # an untrained model gives every document most of the vocabulary


QueryReader: TypeAlias = Callable[[Backbone, list[int], Sequence[torch.Tensor], torch.Tensor | None], torch.Tensor]
"""Makes vectors (B, H) of the token ids of queries behind a prefix; the last argument is `QuerySide.rows`."""


def read_tokens(
    backbone: Backbone, prefix: list[int], queries: Sequence[torch.Tensor], rows: torch.Tensor | None
) -> torch.Tensor:
    """Query vectors mean_i e(t_i), (B, H) float32, not normalised. Each distinct token is read once."""
    blocks = max(1, (ROW_TOKENS - len(prefix)) // 2)
    return token_means(queries, lambda tokens: token_states(backbone, prefix, tokens, blocks), rows)


def token_means(
    queries: Sequence[torch.Tensor], states: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor | None
) -> torch.Tensor:
    """The means (B, H) float32 of the `states` (n, H) that are made of tokens (n,), times their factors `rows`."""
    tokens, places = torch.cat(list(queries)).unique(return_inverse=True)
    made = torch.cat([states(part).float() for part in tokens.split(_TOKENS)])
    if rows is not None:
        made = made * rows[tokens.to(rows.device)][:, None]
    return query_means(made, places.split([len(query) for query in queries]))


@dataclass(frozen=True)
class QuerySide:
    """How queries are scored. `idf` (V,) float32 are factors of sparse scores, `rows` (V,) those of e(t) in a dense
    query; None is 1. `read` makes dense queries."""

    idf: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    read: QueryReader = read_tokens


class Contrastive:
    """The objective of `ContrastiveStage`. The tensors of `side` lie on the model's device."""

    def __init__(
        self,
        engine: Engine,
        backbone: Backbone,
        stage: ContrastiveStage,
        data: DataRecipe,
        side: QuerySide,
        teachers: Teachers | None = None,
    ) -> None:
        longest = max(stage.matryoshka, default=0)
        if longest > backbone.vector_size:
            raise RecipeError(
                f"matryoshka asks for {longest} dimensions, but {backbone.name} has {backbone.vector_size}.",
                remedy="Leave the dimension out.",
            )
        self._engine, self._backbone, self._stage, self._data, self._side = engine, backbone, stage, data, side
        self._teachers = teachers

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss."""
        names = list(dict.fromkeys(name for candidates in batch.candidates for name in candidates))
        layout, sequences, read = _tokenise(self._backbone, batch, names, self._data)
        chunks = list(self._chunks(batch, layout, sequences, read))
        logits = None if self._teachers is None else torch.from_numpy(self._teachers.logits(batch, names))

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            return contrastive_objective(leaves, layout, self._stage, self._side.idf, context, logits)

        return self._engine.backward(chunks, context, objective)

    def _chunks(
        self, batch: Batch, layout: BatchLayout, sequences: list[list[int]], read: list[list[int]]
    ) -> Iterator[Chunk]:
        """This process' forward passes: queries, documents and, where wanted, whole queries."""
        backbone, rows = self._backbone, ROW_TOKENS
        prefixes = [instruction_prefix(backbone, instruction) for instruction in batch.set.instructions]
        asked = torch.tensor(batch.instructions)
        whole = [[*prefixes[n], *query, backbone.eos_id] for n, query in zip(batch.instructions, read, strict=True)]

        def light_of(part: slice) -> Tensors:
            def vectors(prefix: list[int], chosen: torch.Tensor) -> torch.Tensor:
                own = [layout.queries[part][row] for row in chosen.tolist()]
                return self._side.read(backbone, prefix, own, self._side.rows)

            return {"light": _by_instruction(asked[part], prefixes, vectors)}

        def documents_of(part: slice) -> Tensors:
            return document_outputs(backbone, sequences[part], rows)

        def queries_of(part: slice) -> Tensors:
            def states(prefix: list[int], chosen: torch.Tensor) -> torch.Tensor:
                own = [whole[part][row] for row in chosen.tolist()]
                return packed_states(backbone, own, rows).dense(backbone, len(prefix))

            return {"full_dense": _by_instruction(asked[part], prefixes, states)}

        kinds = [
            ("queries", [2 * len(query) for query in layout.queries], light_of),
            ("different documents", [len(one) for one in sequences], documents_of),
        ]
        if self._stage.full_kl > 0:
            kinds.append(("queries", [len(one) for one in whole], queries_of))
        for items, lengths, run in kinds:
            yield from self._engine.chunks(lengths, run, items=items)


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
    side: QuerySide,
) -> Iterator[Tensors]:
    """Scores of B queries for all documents, n at a time: `dense` and `sparse` (B, n) float32 on the model's device.

    Documents keep their 128 strongest terms, as in an index. Run it by `Engine.evaluate`, without gradients.
    """
    ids = [torch.from_numpy(query).long() for query in backbone.tokenizer.as_queries(queries)]
    prefix = instruction_prefix(backbone, instruction)
    means, texts = side.read(backbone, prefix, ids, side.rows), iter(documents)
    while part := list(islice(texts, _DOCUMENTS)):
        made = document_outputs(backbone, backbone.document_ids(part, max_length), ROW_TOKENS)
        strongest, terms = made["sparse"].topk(min(_TOP_K, made["sparse"].shape[1]), dim=1)
        kept = torch.zeros_like(made["sparse"]).scatter(1, terms, strongest)
        with torch.autocast(backbone.device.type, enabled=False):  # bfloat16 would make many scores equal
            scores = {"dense": cosine_scores(means, made["dense"]), "sparse": sparse_scores(ids, kept, side.idf)}
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
