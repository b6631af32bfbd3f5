"""The losses of contrastive training, on representations alone, and of distillation from teachers. All in float32."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightretriever.artifacts.training.recipe import ContrastiveStage, DistilRecipe
from lightretriever.artifacts.training.types import Batch, StepContext, same_text
from torch.nn import functional

__all__ = [
    "BatchLayout",
    "TokenWeights",
    "contrastive_loss",
    "contrastive_objective",
    "cosine_scores",
    "distillation_loss",
    "ensemble",
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


Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class BatchLayout:
    """Where things are in a batch of B queries, M distinct documents and U distinct query tokens.

    `tokens` (U,) int64 token ids; `queries[b]` (n_b,) int64 token ids and `places[b]` (n_b,) int64 their places in
    `tokens`; `candidates` (B, C) int64 columns of each query's own documents, the positive first; `hidden` (B, M)
    bool: documents with the text of the query's positive, which are no negatives.
    """

    tokens: torch.Tensor
    queries: list[torch.Tensor]
    places: list[torch.Tensor]
    candidates: torch.Tensor
    hidden: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, names: list[str], texts: list[str], queries: list[list[int]]) -> "BatchLayout":
        """The layout of `batch`, whose distinct documents are `names` with `texts`; `queries` are token ids."""
        columns = {name: column for column, name in enumerate(names)}
        candidates = torch.tensor([[columns[name] for name in row] for row in batch.candidates])
        twins: dict[str, int] = {}
        group = torch.tensor([twins.setdefault(same_text(text), len(twins)) for text in texts])
        positives = candidates[:, 0]
        hidden = group[positives][:, None] == group[None, :]
        hidden[torch.arange(len(positives)), positives] = False
        ids = [torch.tensor(query) for query in queries]
        tokens, places = torch.cat(ids).unique(return_inverse=True)
        return cls(tokens, ids, list(places.split([len(query) for query in ids])), candidates, hidden)


@dataclass(frozen=True)
class TokenWeights:
    """What a token weighs: `idf` (V,) in sparse scores, `rows` (V,) in the mean of a dense query; None is 1."""

    idf: torch.Tensor | None = None
    rows: torch.Tensor | None = None


def contrastive_objective(
    outputs: Tensors,
    layout: BatchLayout,
    stage: ContrastiveStage,
    weights: TokenWeights,
    batch: Batch,
    context: StepContext,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a step and its parts for the log.

    `outputs`: `tokens` (U, H) states e(t), `dense` (M, H) and `sparse` (M, V) of the documents and, when the full
    model is trained along, `full_dense` (B, H) and `full_sparse` (B, V) of the whole queries.
    """
    device = outputs["dense"].device
    candidates, hidden = layout.candidates.to(device), layout.hidden.to(device)
    positives, tau_dense, tau_sparse = candidates[:, 0], stage.dense_temperature, stage.sparse_temperature
    idf, states = weights.idf, outputs["tokens"].float()
    if weights.rows is not None:
        states = states * weights.rows[layout.tokens.to(device)][:, None]
    means = query_means(states, layout.places)
    ladder = matryoshka_scores(means, outputs["dense"], stage.matryoshka)
    lexical = sparse_scores(layout.queries, outputs["sparse"], idf)
    regulariser = stage.flops.weight * quadratic_warmup(context.step, stage.flops.warmup or max(1, context.steps // 3))
    losses = {
        "dense": torch.stack([contrastive_loss(one, positives, hidden, tau_dense) for one in ladder]).mean(),
        "sparse": contrastive_loss(lexical, positives, hidden, tau_sparse),
        "flops": regulariser * flops(outputs["sparse"]),
    }
    if stage.full_kl > 0:
        full = cosine_scores(outputs["full_dense"], outputs["dense"])
        full_lexical = full_sparse_scores(outputs["full_sparse"], layout.queries, outputs["sparse"], idf)
        losses |= {
            "full_dense": contrastive_loss(full, positives, hidden, tau_dense),
            "full_sparse": contrastive_loss(full_lexical, positives, hidden, tau_sparse),
            "full_flops": regulariser * flops(outputs["full_sparse"]),
            "kl_dense": stage.full_kl * full_alignment_loss(ladder[-1], full, hidden, tau_dense),
            "kl_sparse": stage.full_kl * full_alignment_loss(lexical, full_lexical, hidden, tau_sparse),
        }
    if stage.distil is not None and batch.teachers is not None:
        target = _target(batch, stage.distil, device)
        losses["distil"] = stage.distil.weight * (
            distillation_loss(lexical.gather(1, candidates) / tau_sparse, target)
            + distillation_loss(ladder[-1].gather(1, candidates) / tau_dense, target)
        )
    total = torch.stack(list(losses.values())).sum()
    logged = {name: float(value.detach()) for name, value in losses.items()} | {"loss": float(total.detach())}
    hits = (ladder[-1].argmax(dim=1) == positives).float().mean()
    logged |= {"dense_accuracy": float(hits), "terms": float((outputs["sparse"] > 0).float().sum(dim=1).mean())}
    return total, logged | {"sparse_accuracy": float((lexical.argmax(dim=1) == positives).float().mean())}


def _target(batch: Batch, distil: DistilRecipe, device: torch.device) -> torch.Tensor:
    """The teachers' combined logits over each query's candidates, (B, C)."""
    weights = torch.tensor([teacher.weight for teacher in distil.teachers])
    return ensemble(torch.as_tensor(batch.teachers), weights, distil.scale).to(device)
