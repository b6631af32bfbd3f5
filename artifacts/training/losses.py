"""The losses of contrastive training, on representations alone. All in float32."""

from collections.abc import Sequence

import torch
from torch.nn import functional

__all__ = [
    "contrastive_loss",
    "cosine_scores",
    "flops",
    "full_alignment_loss",
    "full_sparse_scores",
    "matryoshka_scores",
    "quadratic_warmup",
    "query_means",
    "sparse_scores",
]


def query_means(states: torch.Tensor, queries: Sequence[torch.Tensor]) -> torch.Tensor:
    """Query vectors mean_i e(t_i), (B, H) float32, not normalised.

    `states` (U, H): e(t) of the batch's distinct tokens; `queries[b]` (n_b,) int64: places of the query's tokens in it.
    """
    places = torch.cat(list(queries)).to(states.device)
    starts = torch.tensor([0, *(len(query) for query in queries[:-1])], device=states.device).cumsum(0)
    return functional.embedding_bag(places, states.float(), starts, mode="mean")


def cosine_scores(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Cosine of every query with every document, (B, H), (M, H) → (B, M)."""
    return functional.normalize(queries.float(), dim=1) @ functional.normalize(documents.float(), dim=1).T


def matryoshka_scores(queries: torch.Tensor, documents: torch.Tensor, dimensions: Sequence[int]) -> list[torch.Tensor]:
    """Cosine scores of each prefix of the vectors, and of the whole: one (B, M) per dimension, ascending."""
    lengths = sorted({*dimensions, queries.shape[1]})
    return [cosine_scores(queries[:, :length], documents[:, :length]) for length in lengths]


def sparse_scores(queries: Sequence[torch.Tensor], documents: torch.Tensor, idf: torch.Tensor | None) -> torch.Tensor:
    """s(q, d) = Σ_t count_q(t) · IDF_t · w_d(t), (B, M); without `idf` (V,) its factor is 1.

    `queries[b]` (n_b,) int64 token ids, a repeated token counts again; `documents` (M, V) float32 weights w.
    """
    tokens, places = torch.cat(list(queries)).to(documents.device).unique(return_inverse=True)
    weights = documents[:, tokens]  # only the batch's own terms can score
    if idf is not None:
        weights = weights * idf[tokens]
    counts = weights.new_zeros(len(queries), len(tokens))
    owner = torch.repeat_interleave(
        torch.arange(len(queries), device=documents.device),
        torch.tensor([len(query) for query in queries], device=documents.device),
    )
    counts.index_put_((owner, places), torch.ones((), device=documents.device), accumulate=True)
    return counts @ weights.T


def full_sparse_scores(
    weights: torch.Tensor, queries: Sequence[torch.Tensor], documents: torch.Tensor, idf: torch.Tensor | None
) -> torch.Tensor:
    """Sparse scores of queries that the full model weighted, `weights` (B, V), with `documents` (M, V): (B, M).

    Each query's weights are scaled to the sum of its token counts. That is a temperature per query, which changes no
    ranking and brings the scores to the size of those of token counts.
    """
    counts = torch.tensor([float(len(query)) for query in queries], device=weights.device)
    scaled = weights * (counts / weights.sum(dim=1).clamp_min(torch.finfo(weights.dtype).tiny))[:, None]
    return (scaled if idf is None else scaled * idf) @ documents.T


def contrastive_loss(
    scores: torch.Tensor, positives: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> torch.Tensor:
    """-ln( e^{s(q,d+)/τ} / Σ_d e^{s(q,d)/τ} ), mean over the queries.

    `scores` (B, M); `positives` (B,) int64, the column of each query's positive; `hidden` (B, M) bool, columns that are
    left out because they hold the text of the query's positive.
    """
    return functional.cross_entropy(scores.masked_fill(hidden, -torch.inf) / temperature, positives)


def full_alignment_loss(
    scores: torch.Tensor, full: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> torch.Tensor:
    """KL(softmax(full/τ) ‖ softmax(scores/τ)), mean over the queries: asymmetric scores follow the full model's.

    No gradient reaches `full`.
    """
    lowest = torch.finfo(scores.dtype).min  # not -inf, which the KL of two zeros can't take
    target = functional.log_softmax((full.detach() / temperature).masked_fill(hidden, lowest), dim=1)
    student = functional.log_softmax((scores / temperature).masked_fill(hidden, lowest), dim=1)
    return functional.kl_div(student, target, log_target=True, reduction="batchmean")


def flops(weights: torch.Tensor) -> torch.Tensor:
    """FLOPS = Σ_t (mean_i w_i(t))² of sparse vectors (M, V).

    For IDF-aware training these are the weights without their IDF factor, which is what the index stores.
    """
    return weights.float().mean(dim=0).square().sum()


def quadratic_warmup(step: int, length: int) -> float:
    """The regulariser's share at `step`, from 0: ((step + 1) / length)², at most 1."""
    return min(1.0, (step + 1) / length) ** 2
