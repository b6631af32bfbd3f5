"""The fused sparse head: max-pooled LM-head logits without ever building a (B, T, V) tensor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["MaxPooledHead", "quantise_top_k", "sparse_weights"]

#: Elements of the largest intermediate (rows × V) that one slice may build: 64 Mi, 256 MiB in float32.
SLICE_ELEMENTS = 64 * 2**20


def sparse_weights(hidden: torch.Tensor, head: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Learned sparse document vectors, w_d = max over positions of ln(1 + ReLU(h·P)), as the paper gives them.

    `hidden` (B, T, H) last hidden states; `head` (V, H) LM head rows; `lengths` (B,) int, positions at or after a
    row's length are padding and never touched. Returns (B, V) in float32, differentiable in `hidden` and `head`. ReLU
    and ln are monotone, so the maximum over positions of h·P is taken first, a slice of one row's positions at a time.
    """
    apply: Callable[..., torch.Tensor] = MaxPooledHead.apply
    pooled = apply(hidden, head, lengths)
    return torch.log1p(torch.relu(pooled))


class MaxPooledHead(torch.autograd.Function):
    """m[b, v] = max_t h[b, t]·P[v], with the winning position kept for the backward pass (the paper's Algorithm 1)."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """(B, T, H), (V, H), (B,) → (B, V) float32."""
        vocabulary, step = head.shape[0], max(1, SLICE_ELEMENTS // head.shape[0])
        best = hidden.new_full((hidden.shape[0], vocabulary), -torch.inf)
        keep = any(ctx.needs_input_grad)
        winner = hidden.new_zeros(best.shape if keep else (0,), dtype=torch.int32)
        for row, length in enumerate(lengths.tolist()):
            for start in range(0, length, step):
                value, place = (hidden[row, start : min(start + step, length)] @ head.T).max(dim=0)  # (V,), (V,)
                if keep:
                    winner[row] = torch.where(value > best[row], (place + start).to(torch.int32), winner[row])
                best[row] = torch.maximum(best[row], value)
        ctx.save_for_backward(hidden, head, winner)
        return best.float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Each (b, v) sends its gradient to the one position that won: O(B·V·H) work, O(V·H) memory."""
        hidden, head, winner = ctx.saved_tensors
        (gradient,) = gradients
        hidden_gradient = torch.zeros_like(hidden, dtype=torch.float32)
        head_gradient = torch.zeros_like(head, dtype=torch.float32)
        for row in range(hidden.shape[0]):
            places = winner[row].long()
            share = gradient[row].float()[:, None]  # (V, 1)
            hidden_gradient[row].index_add_(0, places, share * head.float())
            head_gradient += share * hidden[row].float()[places]
        return hidden_gradient.to(hidden.dtype), head_gradient.to(head.dtype), None


def quantise_top_k(
    weights: torch.Tensor, top_k: int | None, quantization: int
) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]]:
    """Impacts of each row of `weights` (B, V): round(quantization · w), the `top_k` largest, zeros left out.

    Equal impacts at the cut are taken in order of token id, so the result doesn't depend on the device's sorting.
    Returns per row token ids (n,) int32, ascending, and impacts (n,) uint16.
    """
    vocabulary = weights.shape[1]
    impacts = torch.round(weights.double() * quantization).clamp_(max=np.iinfo(np.uint16).max).to(torch.int64)
    if top_k is not None and top_k < vocabulary:
        # One integer key per entry, larger impact first and then smaller id: no ties are left to the sort.
        ids = torch.arange(vocabulary - 1, -1, -1, device=weights.device)
        keys = torch.topk(impacts * vocabulary + ids, top_k, dim=1, sorted=False).values
        terms = vocabulary - 1 - keys % vocabulary
        terms, order = terms.sort(dim=1)
        impacts = (keys // vocabulary).gather(1, order)
    else:
        terms = torch.arange(vocabulary, device=weights.device).expand_as(impacts)
    rows = zip(terms.cpu().numpy(), impacts.cpu().numpy(), strict=True)
    return [(term[impact > 0].astype(np.int32), impact[impact > 0].astype(np.uint16)) for term, impact in rows]
