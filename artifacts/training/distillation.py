"""Distillation from an ensemble of different teachers: their scores made comparable, averaged, and followed by KL."""

import torch
from torch.nn import functional

__all__ = ["distillation_loss", "ensemble"]


def ensemble(scores: torch.Tensor, weights: torch.Tensor, scale: float) -> torch.Tensor:
    """The teachers' common logits S · (Σ_j w_j ŝ_j) / (Σ_j w_j), with ŝ_j = (s_j - min s_j) / (max s_j - min s_j).

    `scores` (teachers, B, C), NaN where a teacher has no score; `weights` (teachers,) positive; `scale` S. Minimum and
    maximum are those of one teacher over one query's candidates. Scores that are all equal say nothing about the
    order and become 0. A mean is over the teachers that score the candidate. Returns (B, C) float32, NaN where none
    does.
    """
    scores = scores.float()
    known = ~scores.isnan()
    low = scores.masked_fill(~known, torch.inf).amin(dim=2, keepdim=True)
    high = scores.masked_fill(~known, -torch.inf).amax(dim=2, keepdim=True)
    normalised = torch.where(high > low, (scores - low) / (high - low), 0.0)
    shares = weights.to(scores)[:, None, None] * known
    total = torch.where(known, shares * normalised, 0.0).sum(dim=0)
    return scale * total / shares.sum(dim=0)  # 0 / 0 is the NaN of a candidate that nobody scores


def distillation_loss(student: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """KL(softmax(target) ‖ softmax(student)) over each query's candidates, mean over the queries, in float32.

    `student` (B, C) logits; `target` (B, C) as `ensemble` gives them: candidates that are NaN there are left out of
    both distributions. The gradient reaches the student alone.
    """
    unknown = target.isnan()
    lowest = torch.finfo(torch.float32).min  # not -inf, of which the KL would make NaN
    wanted = functional.log_softmax(target.detach().float().masked_fill(unknown, lowest), dim=1)
    found = functional.log_softmax(student.float().masked_fill(unknown, lowest), dim=1)
    return functional.kl_div(found, wanted, log_target=True, reduction="batchmean")
