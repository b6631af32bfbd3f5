"""A language model as an encoder: documents, whole queries, and tokens by themselves.

A document is read as `[bos] d <eos>`. Dense: the state at `<eos>`, or what the adapter was trained with (`Backbone`).
Sparse: max over the positions of d of ln(1 + ReLU(h·P)). A whole query is `[bos] I q <eos>`, its sparse vector over the
positions of q; of it the strongest terms are kept, as a model that isn't trained yet finds all of its vocabulary a
little likely. Whole queries are what the token table is fitted to and compared with; the service never reads one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from lightretriever.artifacts.pipeline.encoded import ImpactRow
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder, SparseEncoder, StatesOf
from lightretriever.artifacts.pipeline.model import CHARS_PER_TOKEN, Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.sparse_head import QUANTIZATION, quantise_top_k, sparse_weights
from lightretriever.artifacts.pipeline.states import PackedStates, packed_states, token_states
from lightretriever.artifacts.progress import ProgressBar
from torch.nn.functional import normalize

__all__ = ["FULL_QUERY_TERMS", "LanguageModel", "full_query_states", "instruction_prefix", "length_sorted_batches"]

#: Sparse terms kept of a query.
FULL_QUERY_TERMS = 64
_BATCH = 64
_ROW_TOKENS = 256


@dataclass(frozen=True)
class LanguageModel(Encoder, SparseEncoder):
    """A language model as an encoder. `settings` say how far and how much at a time it reads documents, and how many
    of their terms it keeps."""

    backbone: Backbone
    settings: EncodeRecipe

    @classmethod
    def of(cls, backbone: Backbone, settings: EncodeRecipe | None = None) -> Self:
        """A loaded model as an encoder; `settings` are those of a recipe by default."""
        settings = settings or EncodeRecipe()
        names = ("name", "fingerprint", "tokenizer", "tokenizer_json", "device", "embedded")
        shared = {name: getattr(backbone, name) for name in names}
        size, longest = backbone.vector_size, settings.max_length
        learned = settings.impacts != "bm25"
        return cls(
            **shared,
            hidden_size=size,
            longest=longest,
            has_sparse=learned,
            backbone=backbone,
            settings=settings,
        )

    def encode_documents(self, texts: Sequence[str], *, progress: ProgressBar | None = None) -> Encoded:
        """Dense vectors (n, H) and impacts. The longest are batched first, so that a batch too large fails at once.

        On a CPU each text is read by itself, unless the settings say how many positions at a time: this takes about as
        long, and a vector doesn't depend in its last bits on the texts beside it.
        """
        backbone, settings = self.backbone, self.settings
        sequences = backbone.document_ids(texts, settings.max_length)
        dense = np.empty((len(texts), self.hidden_size), dtype=np.float32)
        sparse: dict[int, ImpactRow] = {}
        batch_tokens = settings.batch_tokens or (32_768 if self.device.type == "cuda" else 1)
        with torch.inference_mode():
            for batch in length_sorted_batches(sequences, batch_tokens):
                states = _last_hidden_states(backbone, [sequences[index] for index in batch])
                dense[batch] = normalize(states.dense(backbone).float(), dim=1).cpu().numpy()
                if self.has_sparse:
                    weights = sparse_weights(states.hidden, backbone.head, backbone.sparse_spans(states.spans))
                    sparse |= zip(batch, quantise_top_k(weights, settings.top_k, QUANTIZATION), strict=True)
                if progress is not None:
                    progress.advance(len(batch))
        return Encoded(dense, [sparse[index] for index in range(len(texts))] if self.has_sparse else None)

    def encode_impacts(self, texts: Sequence[str]) -> list[ImpactRow]:
        """Impacts of documents; none where they are BM25."""
        return self.encode_documents(texts).sparse or []

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """Whether each document has more tokens than it reads, special ones included."""
        longest = self.settings.max_length
        read = self.backbone.document_ids(texts, longest + 1)
        return [
            len(ids) > longest or len(text) > CHARS_PER_TOKEN * longest for ids, text in zip(read, texts, strict=True)
        ]

    def encode_queries(
        self, texts: Sequence[str], instruction: str = "", *, progress: ProgressBar | None = None
    ) -> Encoded:
        """Dense vectors (n, H) and, where documents have learned impacts, the weights of the strongest terms, as
        documents have them before quantisation."""
        prefix = instruction_prefix(self.backbone, instruction)
        encoded = [ids.tolist() for ids in self.tokenizer.encode_batch(texts)]
        dense = np.empty((len(texts), self.hidden_size), dtype=np.float32)
        sparse = []
        with torch.inference_mode():
            for start in range(0, len(encoded), _BATCH):
                part = encoded[start : start + _BATCH]
                states, weights = full_query_states(self.backbone, prefix, part, _ROW_TOKENS)
                dense[start : start + len(part)] = normalize(states.float(), dim=1).cpu().numpy()
                for row in weights:
                    terms = row.nonzero()[:, 0]
                    sparse.append((terms.cpu().numpy().astype(np.int32), row[terms].cpu().numpy()))
                if progress is not None:
                    progress.advance(len(part))
        return Encoded(dense, sparse if self.has_sparse else None)

    def token_states(self, instruction: str = "") -> StatesOf:
        """e(t) behind the instruction."""
        prefix = instruction_prefix(self.backbone, instruction)
        return lambda tokens: token_states(self.backbone, prefix, tokens)


def instruction_prefix(backbone: Backbone, instruction: str) -> list[int]:
    """`[bos] I` as token ids, I being `Instruct: {task}\\nQuery: ` or nothing for an empty instruction."""
    text = f"Instruct: {instruction}\nQuery: " if instruction else ""
    prefix = [*backbone.prefix(), *backbone.tokenizer.encode(text).tolist()]
    if not prefix:  # a model without [bos] and an empty instruction: the end token serves as the first position
        prefix = [backbone.eos_id]
    return prefix


def full_query_states(
    backbone: Backbone, prefix: list[int], queries: list[list[int]], row_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense states (B, H), not normalised, and sparse weights (B, V) float32 of tokenised queries behind `prefix`."""
    packed = packed_states(backbone, [[*prefix, *query, backbone.eos_id] for query in queries], row_tokens)
    spans = backbone.sparse_spans(packed.spans, len(prefix))
    weights = sparse_weights(packed.hidden, backbone.head, spans)
    strongest, terms = weights.topk(min(FULL_QUERY_TERMS, weights.shape[1]), dim=1)
    return packed.dense(backbone, len(prefix)), torch.zeros_like(weights).scatter(1, terms, strongest)


def length_sorted_batches(sequences: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of `sequences` in batches of at most `batch_tokens` padded positions (at least one sequence)."""
    order = sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(sequences[batch[0]]) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _last_hidden_states(backbone: Backbone, sequences: list[list[int]]) -> PackedStates:
    """Right-padded forward pass, one text a row.

    Where attention is causal, no real position ever sees the padding behind it and no mask is needed.
    """
    if backbone.attention == "bidirectional":
        return packed_states(backbone, sequences, row_tokens=1)
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), backbone.eos_id)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    states: torch.Tensor = backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)[0]
    spans = [(row * width, row * width + len(sequence)) for row, sequence in enumerate(sequences)]
    return PackedStates(states.flatten(0, 1), spans)
