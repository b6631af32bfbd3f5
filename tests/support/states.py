"""What the fast ways to the states and weights of a language model are compared with."""

import torch

from lightretriever.artifacts.pipeline.language_model import sparse_weights
from lightretriever.artifacts.pipeline.model import Backbone


def token_states_naive(backbone: Backbone, prefix: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """e(t) by the plain forward pass of `prefix t <eos>`, one sequence per token. (n,) → (n, H)."""
    head = torch.tensor(prefix, device=backbone.device).expand(len(tokens), -1)
    end = torch.full((len(tokens), 1), backbone.eos_id, device=backbone.device)
    ids = torch.cat([head, tokens.to(backbone.device)[:, None], end], dim=1)
    states: torch.Tensor = backbone.decoder(input_ids=ids, use_cache=False)[0]
    return states[:, -1]


def padded_weights(hidden: torch.Tensor, head: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """`sparse_weights` of right-padded states (B, T, H), of which the first `lengths` (B,) of each row count."""
    spans = [(row * hidden.shape[1], row * hidden.shape[1] + length) for row, length in enumerate(lengths.tolist())]
    return sparse_weights(hidden.flatten(0, 1), head, spans)
