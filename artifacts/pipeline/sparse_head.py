"""The fused sparse head: max-pooled LM-head logits without ever building a (B, T, V) tensor."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from lightretriever.artifacts.pipeline.encoded import ImpactRow

__all__ = ["QUANTIZATION", "MaxPooledHead", "quantise_top_k", "sparse_weights"]

QUANTIZATION: Final = 100
"""Impacts per unit of weight."""

#: Elements of the largest intermediate (rows × V) that one slice may build: 64 Mi, 256 MiB in float32.
SLICE_ELEMENTS = 64 * 2**20


def sparse_weights(hidden: torch.Tensor, head: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    """Learned sparse document vectors, w_d = max over positions of ln(1 + ReLU(h·P)), as the paper gives them.

    `hidden` (N, H) last hidden states; text i is the positions `spans[i]`, end exclusive, so padding is never touched;
    `head` (V, H) LM head rows. Returns (n, V) in float32, differentiable in `hidden` and `head`. ReLU and ln are
    monotone, so the maximum over positions of h·P is taken first, a slice of one text's positions at a time.
    """
    max_pooled: Callable[..., torch.Tensor] = MaxPooledHead.apply
    return torch.log1p(torch.relu(max_pooled(hidden, head, spans)))


class MaxPooledHead(torch.autograd.Function):
    """m[i, v] = max_t h[t]·P[v] over the positions t of text i, with the winning position kept for the backward pass.

    The paper's Algorithm 1.
    """

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
                value, place = (head @ part.T).max(dim=1)  # (V,), (V,)
                winner[row] = torch.where(value > best[row], (place + start).to(torch.int32), winner[row])
                best[row] = torch.maximum(best[row], value)
        ctx.spans = spans
        ctx.save_for_backward(hidden, head, winner)
        return best.float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Each (i, v) sends its gradient to the one position that won. Columns without a gradient cost nothing.

        A query's score and the regulariser reach a few hundred of the V columns.
        """
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


def quantise_top_k(weights: torch.Tensor, top_k: int | None, quantization: int) -> list[ImpactRow]:
    """Impacts of each row of `weights` (B, V): round(quantization · w), the best `top_k`, zeros left out.

    Equal ones at the cut are taken in order of token id, so the result doesn't depend on the device's sorting. IDF has
    no part in it: IDF times impact would keep the rarest terms, which few queries ask for.
    """
    impacts = torch.round(weights.double() * quantization).clamp_(max=np.iinfo(np.uint16).max)
    kept = impacts > 0
    if top_k is not None and top_k < weights.shape[1]:
        least = torch.topk(impacts, top_k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
        above, level = impacts > least, impacts == least
        kept &= above | (level & (level.cumsum(dim=1) <= top_k - above.sum(dim=1, keepdim=True)))
    places, terms = kept.nonzero(as_tuple=True)  # row by row, ascending
    ends = kept.sum(dim=1).cumsum(dim=0)[:-1].tolist()
    found = impacts[places, terms].cpu().numpy().astype(np.uint16)
    return list(zip(np.split(terms.cpu().numpy().astype(np.int32), ends), np.split(found, ends), strict=True))
