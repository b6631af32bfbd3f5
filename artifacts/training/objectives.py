"""The objectives of training: contrastive, of the dense and the sparse side together, and query likelihood."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeAlias

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.pipeline.language_model import (
    Reading,
    instruction_prefix,
    log_likelihoods,
    sparse_weights,
)
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states, token_states
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.losses import (
    BatchLayout,
    contrastive_objective,
    cosine_scores,
    sparse_scores,
)
from lightretriever.artifacts.training.mixture import Batch, StepContext, Tensors
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe, LikelihoodStage
from lightretriever.artifacts.training.teachers import Teachers

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
    return token_means(queries, lambda tokens: token_states(backbone, prefix, tokens), rows)


def token_means(
    queries: Sequence[torch.Tensor], states: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor | None
) -> torch.Tensor:
    """The means (B, H) float32, per query, of the `states` (n, H) that are made of tokens (n,), times their factors
    `rows`."""
    tokens, places = torch.cat(list(queries)).unique(return_inverse=True)
    made = torch.cat([states(part).float() for part in tokens.split(_TOKENS)])
    if rows is not None:
        made = made * rows[tokens.to(rows.device)][:, None]
    starts = torch.tensor([0, *(len(query) for query in queries[:-1])], device=made.device).cumsum(0)
    return embedding_bag(places.to(made.device), made, starts, mode="mean")


@dataclass(frozen=True)
class QuerySide:
    """How queries are scored. `idf` (V,) float32 are factors of sparse scores, `rows` (V,) those of e(t) in a dense
    query; None is 1. `read` makes dense queries."""

    idf: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    read: QueryReader = read_tokens


@dataclass(frozen=True)
class Contrastive:
    """The objective of `ContrastiveStage`. The tensors of `side` lie on the model's device."""

    engine: Engine
    backbone: Backbone
    stage: ContrastiveStage
    data: DataRecipe
    side: QuerySide
    teachers: Teachers | None = None

    def __post_init__(self) -> None:
        longest = max(self.stage.matryoshka, default=0)
        if longest > self.backbone.vector_size:
            raise RecipeError(
                f"matryoshka asks for {longest} dimensions, but {self.backbone.name} has {self.backbone.vector_size}.",
                remedy="Leave the dimension out.",
            )

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss. Raises CorpusError for a query without tokens."""
        engine, backbone, data = self.engine, self.backbone, self.data
        names = list(dict.fromkeys(chain.from_iterable(batch.candidates)))
        texts = [batch.set.documents[name] for name in names]
        asked = [example.query for example in batch.examples]
        queries, read = (
            [ids[: data.max_query_length].tolist() for ids in found]
            for found in (backbone.tokenizer.as_queries(asked), backbone.tokenizer.encode_batch(asked))
        )
        for example, ids in zip(batch.examples, queries, strict=True):
            if not ids:
                raise CorpusError(f'{batch.set.name}: query "{example.query_id}" has no tokens.', remedy="Remove it.")
        layout = BatchLayout.of(batch, names, texts, queries)
        documents = backbone.document_ids(texts, data.max_document_length)
        prefixes = [instruction_prefix(backbone, instruction) for instruction in batch.set.instructions]
        whole = [
            [*prefixes[number], *ids, backbone.eos_id] for number, ids in zip(batch.instructions, read, strict=True)
        ]

        def light_of(part: slice) -> Tensors:
            asked, own = torch.tensor(batch.instructions[part]), layout.queries[part]
            places = [(asked == number).nonzero()[:, 0] for number in asked.unique().tolist()]
            made = [
                self.side.read(backbone, prefixes[asked[rows[0]]], [own[row] for row in rows], self.side.rows)
                for rows in places
            ]
            return {"light": torch.cat(made)[torch.cat(places).argsort().to(made[0].device)]}

        def documents_of(part: slice) -> Tensors:
            return document_outputs(backbone, documents[part])

        def whole_of(part: slice) -> Tensors:
            return {"full_dense": packed_states(backbone, whole[part], ROW_TOKENS).dense(backbone)}

        chunks = [
            *engine.chunks([2 * len(ids) for ids in queries], light_of, items="queries"),
            *engine.chunks([len(ids) for ids in documents], documents_of, items="different documents"),
        ]
        if self.stage.full_kl > 0:
            chunks += engine.chunks([len(ids) for ids in whole], whole_of, items="queries")
        logits = None if self.teachers is None else torch.from_numpy(self.teachers.logits(batch, names))

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            return contrastive_objective(leaves, layout, self.stage, self.side.idf, context, logits)

        return engine.backward(chunks, context, objective)


def document_outputs(backbone: Backbone, sequences: list[list[int]]) -> Tensors:
    """`dense` (n, D) and `sparse` (n, V) of framed documents."""
    packed = packed_states(backbone, sequences, ROW_TOKENS)
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
        made = document_outputs(backbone, backbone.document_ids(part, max_length))
        strongest, terms = made["sparse"].topk(min(_TOP_K, made["sparse"].shape[1]), dim=1)
        kept = torch.zeros_like(made["sparse"]).scatter(1, terms, strongest)
        with torch.autocast(backbone.device.type, enabled=False):  # bfloat16 would make many scores equal
            scores = {"dense": cosine_scores(means, made["dense"]), "sparse": sparse_scores(ids, kept, side.idf)}
        yield scores


@dataclass(frozen=True)
class Likelihood:
    """The objective of `LikelihoodStage`: L = -Σ_i ln P(q_i | d̃, q_1 … q_{i-1}), mean over pairs of a query and its
    relevant document, most of whose tokens are masked (LLM-QL paper, eq. 8)."""

    engine: Engine
    backbone: Backbone
    stage: LikelihoodStage
    data: DataRecipe

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the loss, and the loss of a token. Raises RecipeError where the prompts
        leave a document no room."""
        backbone, data, stage = self.backbone, self.data, self.stage
        reading = Reading(stage.before, stage.after, stage.block)
        if (frame := len(reading.frame(backbone, []))) >= data.max_document_length:
            raise RecipeError(
                f"data.max_document_length is {data.max_document_length}, but the prompts of query_likelihood have "
                f"{frame} tokens.",
                remedy="Raise it, or shorten the prompts.",
            )
        marks = backbone.tokenizer.encode("_").tolist()
        mask = marks[0] if len(marks) == 1 else backbone.eos_id
        texts = [batch.set.documents[example.positive] for example in batch.examples]
        random = np.random.default_rng((context.seed % 2**64, context.batch))
        read = reading.document_ids(backbone, texts, data.max_document_length)
        documents = [corrupted(ids, stage.corruption, mask, random) for ids in read]
        found = backbone.tokenizer.encode_batch([example.query for example in batch.examples])
        queries = [ids[: data.max_query_length].tolist() for ids in found]
        lengths = [frame + len(ids) + len(query) for ids, query in zip(documents, queries, strict=True)]

        def likelihoods_of(part: slice) -> Tensors:
            made = log_likelihoods(backbone, reading, documents[part], queries[part], ROW_TOKENS)
            return {"likelihood": made[:, None]}

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            loss = -leaves["likelihood"].mean()
            tokens = sum(map(len, queries)) / len(queries)
            return {"query_likelihood": loss}, {"loss_of_token": float(loss.detach()) / max(tokens, 1)}

        chunks = list(self.engine.chunks(lengths, likelihoods_of, items="queries"))
        return self.engine.backward(chunks, context, objective)


def corrupted(ids: list[int], share: float, mask: int, random: np.random.Generator) -> list[int]:
    """A document's token ids, each replaced by `mask` with the probability `share`."""
    drawn = random.random(len(ids)) < share
    return [mask if hidden else token for token, hidden in zip(ids, drawn.tolist(), strict=True)]
