"""The losses of contrastive training, on representations alone, and of distillation from teachers. All in float32."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from lightretriever.artifacts.training.mixture import Batch, StepContext, Tensors, same_text
from lightretriever.artifacts.training.recipe import ContrastiveStage, FlopsRecipe


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
    tokens, positions = torch.cat(list(queries)).unique(return_inverse=True)
    owners = torch.arange(len(queries)).repeat_interleave(torch.tensor([len(query) for query in queries]))
    counts = torch.zeros(len(queries), len(tokens)).index_put_((owners, positions), torch.ones(()), accumulate=True)
    counts, tokens = counts.to(documents.device), tokens.to(documents.device)
    weights = documents[:, tokens]  # only the batch's own terms can score
    if idf is not None:
        weights = weights * idf[tokens]
    return counts @ weights.T


def contrastive_loss(
    scores: torch.Tensor, positives: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> torch.Tensor:
    """-ln( e^{s(q,d+)/τ} / Σ_d e^{s(q,d)/τ} ), mean over the queries. `scores` (B, M); `positives` (B,) int64, the
    column of each query's positive; `hidden` (B, M) bool, columns that are no negatives."""
    return functional.cross_entropy(scores.masked_fill(hidden, -torch.inf) / temperature, positives)


def flops(weights: torch.Tensor) -> torch.Tensor:
    """FLOPS = Σ_t (mean_i w_i(t))² of sparse vectors (M, V), without their IDF factor."""
    return weights.float().mean(dim=0).square().sum()


def flops_weight(settings: FlopsRecipe, context: StepContext) -> float:
    """λ at a step: `weight` times ((step + 1) / warmup)², from the end of the warm-up on all of it."""
    warmup = settings.warmup or max(1, context.steps // 3)
    return settings.weight * min(1.0, (context.step + 1) / warmup) ** 2


def distillation_loss(student: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """KL(softmax(target) ‖ softmax(student)) over each query's candidates, mean over the queries, in float32. Both are
    logits (B, C); candidates whose target is NaN are left out. The gradient reaches the student alone."""
    unknown = target.isnan()
    lowest = torch.finfo(torch.float32).min  # not -inf, of which the KL would make NaN
    wanted = functional.log_softmax(target.detach().float().masked_fill(unknown, lowest), dim=1)
    found = functional.log_softmax(student.float().masked_fill(unknown, lowest), dim=1)
    return functional.kl_div(found, wanted, log_target=True, reduction="batchmean")


@dataclass(frozen=True)
class BatchLayout:
    """Where things are in a batch of B queries and M distinct documents: `queries[b]` (n_b,) int64 token ids;
    `positives` (B,) int64, the column of each query's positive; `hidden` (B, M) bool, documents that are no negatives:
    they have the text of a positive of the same query text in the batch."""

    queries: list[torch.Tensor]
    positives: torch.Tensor
    hidden: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, names: list[str], texts: list[str], queries: list[list[int]]) -> "BatchLayout":
        """The layout of `batch`, whose distinct documents are `names` with `texts`, and whose queries have the token
        ids `queries`."""
        columns = {name: column for column, name in enumerate(names)}
        positives = torch.tensor([columns[example.positive] for example in batch.examples])
        asked, read = _numbered([example.query for example in batch.examples]), _numbered(texts)
        twins = read[positives][:, None] == read
        hidden = (asked[:, None] == asked).float() @ twins.float() > 0
        hidden[torch.arange(len(positives)), positives] = False
        return cls([torch.tensor(query) for query in queries], positives, hidden)


def _numbered(texts: list[str]) -> torch.Tensor:
    """A number for each text, (n,) int64, the same for those that training takes for the same."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(same_text(text), len(numbers)) for text in texts])


def contrastive_objective(
    outputs: Tensors,
    layout: BatchLayout,
    stage: ContrastiveStage,
    idf: torch.Tensor | None,
    context: StepContext,
    teachers: torch.Tensor | None = None,
) -> tuple[Tensors, dict[str, float]]:
    """The losses of a step, which are to be added, and what else is logged.

    `outputs`: `light` (B, H), the queries' mean_i e(t_i), `dense` (M, H) and `sparse` (M, V) of the documents and, with
    `full_kl`, `full_dense` (B, H) of whole queries, which each prefix of the dense leg follows by the same prefix, and
    the sparse leg by whole vectors. `teachers` (B, M) are an ensemble's logits, NaN where there are none.
    """
    device = outputs["dense"].device
    positives, hidden = layout.positives.to(device), layout.hidden.to(device)
    tau_dense, tau_sparse = stage.dense_temperature, stage.sparse_temperature
    ladder = matryoshka_scores(outputs["light"], outputs["dense"], stage.matryoshka)
    lexical = sparse_scores(layout.queries, outputs["sparse"], idf)

    def prefixes(scores: list[torch.Tensor]) -> torch.Tensor:
        each = [contrastive_loss(one, positives, hidden, tau_dense) for one in scores]
        return stage.contrastive * torch.stack(each).sum()

    losses = {
        "dense": prefixes(ladder),
        "sparse": stage.contrastive * contrastive_loss(lexical, positives, hidden, tau_sparse),
        "flops": flops_weight(stage.flops, context) * flops(outputs["sparse"]),
    }
    if stage.full_kl > 0:
        full = matryoshka_scores(outputs["full_dense"], outputs["dense"], stage.matryoshka)
        targets = [(one / tau_dense).masked_fill(hidden, torch.nan) for one in full]
        followed = [distillation_loss(one / tau_dense, target) for one, target in zip(ladder, targets, strict=True)]
        losses |= {
            "full_dense": prefixes(full),
            "kl_dense": stage.full_kl * torch.stack(followed).sum(),
            "kl_sparse": stage.full_kl * distillation_loss(lexical / tau_sparse, targets[-1]),
        }
    if stage.distillation is not None and teachers is not None:
        logits = {"dense": ladder[-1] / tau_dense, "sparse": lexical / tau_sparse}
        for leg in stage.distillation.legs:
            losses[f"teachers_{leg}"] = stage.distillation.weight * distillation_loss(logits[leg], teachers.to(device))
    hits = (ladder[-1].argmax(dim=1) == positives).float().mean()
    logged = {"dense_accuracy": float(hits), "terms": float((outputs["sparse"] > 0).float().sum(dim=1).mean())}
    return losses, logged | {"sparse_accuracy": float((lexical.argmax(dim=1) == positives).float().mean())}
