"""Query likelihood, log P(q | d): how readily a language model writes a query after it has read a document.

The model reads `[bos] before d after <eos> q` (the LLM-QL paper, section 4.1). With `block`, the tokens of q see
`<eos>` and each other, and nothing of what stands before: the state at `<eos>` has to hold what q is about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import packed_states

LIKELIHOOD = "likelihood"
"""Where an adapter's settings have its `Reading`."""


@dataclass(frozen=True)
class Reading:
    """How a document is read before its query is written: the prompts around it, and the attention block."""

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
    places = [
        position
        for (begin, _), end, query in zip(packed.spans, ends, queries, strict=True)
        for position in range(begin + end, begin + end + len(query))
    ]
    wanted = torch.tensor([token for query in queries for token in query], device=device)
    logits = packed.hidden[torch.tensor(places, device=device)] @ backbone.head.T
    chosen = -functional.cross_entropy(logits.float(), wanted, reduction="none")
    owners = torch.arange(len(queries)).repeat_interleave(torch.tensor([len(query) for query in queries])).to(device)
    return torch.zeros(len(queries), device=device).index_add(0, owners, chosen)
