"""The loss of a contrastive step on the representations of the whole batch."""

from dataclasses import dataclass

import torch
from lightretriever.artifacts.training.distillation import distillation_loss, ensemble
from lightretriever.artifacts.training.losses import (
    contrastive_loss,
    cosine_scores,
    flops,
    full_alignment_loss,
    full_sparse_scores,
    matryoshka_scores,
    quadratic_warmup,
    query_means,
    sparse_scores,
)
from lightretriever.artifacts.training.recipe import ContrastiveStage, DistilRecipe
from lightretriever.artifacts.training.types import Batch, StepContext

__all__ = ["BatchLayout", "TokenWeights", "contrastive_objective"]

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
        group = torch.tensor([twins.setdefault(text.strip().casefold(), len(twins)) for text in texts])
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
