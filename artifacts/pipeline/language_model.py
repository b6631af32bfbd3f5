"""A language model as an encoder: documents, whole queries, and tokens by themselves.

A document is read as `[bos] d <eos>`. Dense: the state at `<eos>`, or what the adapter was trained with (`Backbone`).
Sparse: max over the positions of d of ln(1 + ReLU(h·P)). A whole query is `[bos] I q <eos>`, its sparse vector over the
positions of q; of it the strongest terms are kept, as a model that isn't trained yet finds all of its vocabulary a
little likely. Whole queries are what the token table is fitted to and compared with; the service never reads one.

For log P(q | d) the model reads `[bos] before d after <eos> q` (the LLM-QL paper, section 4.1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from torch.nn.functional import cross_entropy, normalize

from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder, StatesOf
from lightretriever.artifacts.pipeline.model import CHARS_PER_TOKEN, Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.rows import ImpactRow
from lightretriever.artifacts.pipeline.states import PackedStates, packed_states, token_states

QUANTIZATION: Final = 100
"""Impacts per unit of weight."""

FULL_QUERY_TERMS: Final = 64
"""Sparse terms that a whole model keeps of a query."""

LIKELIHOOD: Final = "likelihood"
"""Where an adapter's settings have its `Reading`."""

#: Elements of the largest intermediate (rows × V) that one slice may build: 64 Mi, 256 MiB in float32.
SLICE_ELEMENTS = 64 * 2**20

_BATCH: Final = 64
_ROW_TOKENS: Final = 256


def sparse_weights(hidden: torch.Tensor, head: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    """Return the sparse vectors of n documents, w_d = max over positions of ln(1 + ReLU(h·P)): (n, V) float32.

    `hidden` (N, H) are last hidden states, `spans[i]` the positions of text i, end exclusive, and `head` P (V, H): it
    is differentiable in both. ReLU and ln are monotone, so the maximum of h·P is taken first, a slice of positions at a
    time: a tensor of texts, positions and vocabulary is never built.
    """
    max_pooled: Callable[..., torch.Tensor] = _MaxPooledHead.apply
    return torch.log1p(torch.relu(max_pooled(hidden, head, spans)))


class _MaxPooledHead(torch.autograd.Function):
    """m[i, v] = max_t h[t]·P[v] over the positions t of text i, the paper's Algorithm 1."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
        """(N, H), (V, H), n spans → (n, V) float32."""
        step = max(1, SLICE_ELEMENTS // head.shape[0])
        best = hidden.new_full((len(spans), head.shape[0]), -torch.inf)
        keep = any(ctx.needs_input_grad)
        winner = torch.zeros(best.shape if keep else (0,), dtype=torch.int32, device=hidden.device)
        for row, (begin, end) in enumerate(spans):
            for start in range(begin, end, step):
                part = hidden[start : min(start + step, end)]
                if not keep:  # a maximum without its place is many times faster
                    best[row] = torch.maximum(best[row], (part @ head.T).amax(dim=0))
                    continue
                value, position = (head @ part.T).max(dim=1)  # (V,), (V,)
                winner[row] = torch.where(value > best[row], (position + start).to(torch.int32), winner[row])
                best[row] = torch.maximum(best[row], value)
        ctx.spans = spans
        ctx.save_for_backward(hidden, head, winner)
        return best.float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Send the gradient of each (i, v) to the position that won. Only a few hundred of the V columns have one."""
        hidden, head, winner = ctx.saved_tensors
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        hidden_gradient = torch.zeros_like(hidden, dtype=torch.float32) if needs_hidden else None
        head_gradient = torch.zeros_like(head, dtype=torch.float32) if needs_head else None
        for row, upstream in enumerate(gradients[0]):
            columns = upstream.nonzero()[:, 0]
            places, values = winner[row, columns].long(), upstream[columns].float()[:, None]
            if hidden_gradient is not None:
                hidden_gradient.index_add_(0, places, values * head[columns].float())
            if head_gradient is not None:
                head_gradient.index_add_(0, columns, values * hidden[places].float())
        return (
            None if hidden_gradient is None else hidden_gradient.to(hidden.dtype),
            None if head_gradient is None else head_gradient.to(head.dtype),
            None,
        )


def quantise_top_k(weights: torch.Tensor, top_k: int | None) -> list[ImpactRow]:
    """Impacts of each row of `weights` (B, V): round(100 · w), the best `top_k`, zeros left out.

    Equal ones at the cut are taken in order of token id, so the result doesn't depend on the device's sorting. IDF has
    no part in it: IDF times impact would keep the rarest terms, which few queries ask for.
    """
    impacts = torch.round(weights.double() * QUANTIZATION).clamp_(max=np.iinfo(np.uint16).max)
    kept = impacts > 0
    if top_k is not None and top_k < weights.shape[1]:
        least = torch.topk(impacts, top_k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
        above, level = impacts > least, impacts == least
        kept &= above | (level & (level.cumsum(dim=1) <= top_k - above.sum(dim=1, keepdim=True)))
    places, terms = kept.nonzero(as_tuple=True)  # row by row, ascending
    ends = kept.sum(dim=1).cumsum(dim=0)[:-1].tolist()
    values = impacts[places, terms].cpu().numpy().astype(np.uint16)
    return list(zip(np.split(terms.cpu().numpy().astype(np.int32), ends), np.split(values, ends), strict=True))


@dataclass(frozen=True)
class LanguageModel(Encoder):
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
        return cls(
            **shared,
            hidden_size=backbone.vector_size,
            longest=settings.max_length,
            has_sparse=settings.impacts != "bm25",
            backbone=backbone,
            settings=settings,
        )

    def encode_documents(self, texts: Sequence[str]) -> Encoded:
        """Dense vectors (n, H) and impacts. The longest are batched first, so that a batch too large fails at once. On
        a CPU each text is read by itself, unless the settings say how many positions at a time."""
        backbone, settings = self.backbone, self.settings
        sequences = backbone.document_ids(texts, settings.max_length)
        dense = np.empty((len(texts), self.hidden_size), dtype=np.float32)
        sparse: dict[int, ImpactRow] = {}
        batch_tokens = settings.batch_tokens or (32_768 if self.device.type == "cuda" else 1)
        with torch.inference_mode():
            order = sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index))
            while order:
                size = max(1, batch_tokens // len(sequences[order[0]]))
                batch, order = order[:size], order[size:]
                states = _last_hidden_states(backbone, [sequences[index] for index in batch])
                dense[batch] = normalize(states.dense(backbone).float(), dim=1).cpu().numpy()
                if self.has_sparse:
                    weights = sparse_weights(states.hidden, backbone.head, backbone.sparse_spans(states.spans))
                    sparse |= zip(batch, quantise_top_k(weights, settings.top_k), strict=True)
        return Encoded(dense, [sparse[index] for index in range(len(texts))] if self.has_sparse else None)

    def encode_impacts(self, texts: Sequence[str]) -> list[ImpactRow]:
        """Impacts of documents; none where they are BM25."""
        return self.encode_documents(texts).sparse or []

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each document has more tokens than it reads, special ones included."""
        longest = self.settings.max_length
        read = self.backbone.document_ids(texts, longest + 1)
        return [
            len(ids) > longest or len(text) > CHARS_PER_TOKEN * longest for ids, text in zip(read, texts, strict=True)
        ]

    def encode_queries(self, texts: Sequence[str], instruction: str = "") -> Encoded:
        """Dense vectors (n, H) and, where documents have learned impacts, the weights of the strongest terms, as
        documents have them before quantisation."""
        prefix = instruction_prefix(self.backbone, instruction)
        encoded = [ids.tolist() for ids in self.tokenizer.encode_batch(texts)]
        dense = np.empty((len(texts), self.hidden_size), dtype=np.float32)
        sparse = []
        with torch.inference_mode():
            for start in range(0, len(encoded), _BATCH):
                part = encoded[start : start + _BATCH]
                framed = [[*prefix, *query, self.backbone.eos_id] for query in part]
                packed = packed_states(self.backbone, framed, _ROW_TOKENS)
                states = packed.dense(self.backbone, len(prefix))
                dense[start : start + len(part)] = normalize(states.float(), dim=1).cpu().numpy()
                spans = self.backbone.sparse_spans(packed.spans, len(prefix))
                weights = sparse_weights(packed.hidden, self.backbone.head, spans)
                strongest, ids = weights.topk(min(FULL_QUERY_TERMS, weights.shape[1]), dim=1)
                for row in torch.zeros_like(weights).scatter(1, ids, strongest):
                    terms = row.nonzero()[:, 0]
                    sparse.append((terms.cpu().numpy().astype(np.int32), row[terms].cpu().numpy()))
        return Encoded(dense, sparse if self.has_sparse else None)

    def token_states(self, instruction: str = "") -> StatesOf:
        """e(t) behind the instruction."""
        prefix = instruction_prefix(self.backbone, instruction)
        return lambda tokens: token_states(self.backbone, prefix, tokens)


def instruction_prefix(backbone: Backbone, instruction: str) -> list[int]:
    """`[bos] I` as token ids, I being `Instruct: {task}\\nQuery: ` or nothing for an empty instruction."""
    text = f"Instruct: {instruction}\nQuery: " if instruction else ""
    prefix = [*backbone.prefix(), *backbone.tokenizer.encode(text).tolist()]
    return prefix or [backbone.eos_id]  # without [bos] and instruction the end token serves as the first position


def _last_hidden_states(backbone: Backbone, sequences: list[list[int]]) -> PackedStates:
    """Right-padded forward pass, one text a row. Where attention is causal, no position sees the padding behind it."""
    if backbone.attention == "bidirectional":
        return packed_states(backbone, sequences, row_tokens=1)
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), backbone.eos_id)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    states: torch.Tensor = backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)[0]
    spans = [(row * width, row * width + len(sequence)) for row, sequence in enumerate(sequences)]
    return PackedStates(states.flatten(0, 1), spans)


@dataclass(frozen=True)
class Reading:
    """How a document is read before its query is written: the prompts around it, and the attention `block`, with which
    the tokens of q see `<eos>` and each other alone: the state at `<eos>` has to hold what q is about."""

    before: str = ""
    after: str = ""
    block: bool = True

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Reading":
        """The reading that an adapter or model was trained with, by its settings; by default the bare document."""
        return cls(**settings.get(LIKELIHOOD, {}))

    def document_ids(self, backbone: Backbone, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """The ids of documents without `[bos]`, prompts and `<eos>`, which together have at most `max_length`."""
        room, first = max(0, max_length - len(self.frame(backbone, []))), len(backbone.prefix())
        return [framed[first:-1][:room] for framed in backbone.document_ids(texts, max_length)]

    def frame(self, backbone: Backbone, ids: list[int]) -> list[int]:
        """`[bos] before ids after <eos>`."""
        before, after = (backbone.tokenizer.encode(text).tolist() for text in (self.before, self.after))
        return backbone.frame([*before, *ids, *after])


def log_likelihoods(
    backbone: Backbone, reading: Reading, documents: Sequence[list[int]], queries: Sequence[list[int]], row_tokens: int
) -> torch.Tensor:
    """log P(q | d) of n pairs of a document's and a query's token ids, (n,) float32: a sum over the query's tokens."""
    framed = [reading.frame(backbone, ids) for ids in documents]
    ends = [len(ids) - 1 for ids in framed]
    sequences = [[*ids, *query] for ids, query in zip(framed, queries, strict=True)]
    packed = packed_states(backbone, sequences, row_tokens, ends if reading.block else None)
    device = packed.hidden.device
    # The state at a position predicts the token behind it: `<eos>` the first one of q.
    spans = zip(packed.spans, queries, strict=True)
    places = [place for (_, end), query in spans for place in range(end - len(query) - 1, end - 1)]
    wanted = torch.tensor([token for query in queries for token in query], device=device)
    logits = packed.hidden[torch.tensor(places, device=device)] @ backbone.head.T
    chosen = -cross_entropy(logits.float(), wanted, reduction="none")
    owners = np.repeat(np.arange(len(queries)), [len(query) for query in queries])
    return torch.zeros(len(queries), device=device).index_add(0, torch.from_numpy(owners).to(device), chosen)
