"""All losses of a contrastive step against the papers' formulas, written down here in NumPy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lightretriever.artifacts.training.loop import schedule
from lightretriever.artifacts.training.losses import BatchLayout, TokenWeights, contrastive_objective
from lightretriever.artifacts.training.recipe import ContrastiveStage, FlopsRecipe
from lightretriever.artifacts.training.types import StepContext, Tensors

Array = NDArray[np.float64]
B, M, H, V = 3, 6, 8, 12
POSITIVES = np.array([0, 2, 4])
HIDDEN = np.zeros((B, M), dtype=bool)
HIDDEN[0, 5] = HIDDEN[2, 1] = True
QUERIES = [[1, 1, 7], [3], [7, 9, 11, 3]]
TOKENS = np.array([1, 3, 7, 9, 11])
CONTEXT = StepContext(step=3, steps=30, seed=1, batch=3)
SETTINGS = {"dense_temperature": 0.05, "sparse_temperature": 0.7, "full_kl": 0.3, "negatives": 0, "matryoshka": []}


def stage(**changes: object) -> ContrastiveStage:
    flops = FlopsRecipe(weight=0.01, warmup=8)
    return ContrastiveStage.model_validate({"kind": "contrastive", "steps": 30, "flops": flops, **SETTINGS, **changes})


def layout() -> BatchLayout:
    places = [torch.from_numpy(np.searchsorted(TOKENS, query)) for query in QUERIES]
    queries = [torch.tensor(query) for query in QUERIES]
    return BatchLayout(torch.from_numpy(TOKENS), queries, places, torch.from_numpy(POSITIVES), torch.from_numpy(HIDDEN))


def outputs() -> dict[str, Array]:
    random = np.random.default_rng(3)
    shapes = {"tokens": (len(TOKENS), H), "dense": (M, H), "sparse": (M, V), "full_dense": (B, H)}
    made = {name: random.normal(size=shape) for name, shape in shapes.items()}
    return made | {"sparse": np.log1p(np.maximum(made["sparse"], 0))}


IDF = np.random.default_rng(4).uniform(0.5, 3, size=V)


def log_softmax(scores: Array) -> Array:
    return (
        scores
        - scores.max(axis=1, keepdims=True)
        - np.log(np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    )


def cosines(queries: Array, documents: Array) -> Array:
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    return queries @ documents.T / lengths


def contrastive(scores: Array, temperature: float) -> float:
    """-ln( e^{s(q,d+)/τ} / Σ_d e^{s(q,d)/τ} ), without the documents that are no negatives."""
    logs = log_softmax(np.where(HIDDEN, -1e9, scores / temperature))
    return float(-logs[np.arange(B), POSITIVES].mean())


def divergence(student: Array, target: Array) -> float:
    """KL(softmax(target) ‖ softmax(student)), without the documents that are no negatives."""
    wanted, made = (log_softmax(np.where(HIDDEN, -1e9, logits)) for logits in (target, student))
    return float((np.exp(wanted) * (wanted - made)).sum(axis=1).mean())


def scores_of(made: dict[str, Array], size: int) -> tuple[Array, Array, Array]:
    """Dense scores of token means and of whole queries by the first `size` values, and sparse scores."""
    rows = dict(zip(TOKENS.tolist(), made["tokens"], strict=True))
    means = np.stack([np.mean([rows[token] for token in query], axis=0) for query in QUERIES])
    light, full = (cosines(queries[:, :size], made["dense"][:, :size]) for queries in (means, made["full_dense"]))
    sparse = [
        [sum(IDF[token] * document[token] for token in query) for document in made["sparse"]] for query in QUERIES
    ]
    return light, full, np.array(sparse)


def found(stage: ContrastiveStage, made: dict[str, Array]) -> tuple[dict[str, float], Tensors]:
    leaves = {name: torch.from_numpy(part).float() for name, part in made.items()}
    weights = TokenWeights(torch.from_numpy(IDF).float())
    losses, _ = contrastive_objective(leaves, layout(), stage, weights, CONTEXT)
    return {name: float(loss) for name, loss in losses.items()}, losses


@pytest.mark.parametrize("changes", [{}, {"full_kl": 1.4}, {"dense_temperature": 0.3, "sparse_temperature": 2.5}])
def test_every_loss_of_a_step_is_its_formula(changes: dict[str, float]) -> None:
    made, settings = outputs(), {**SETTINGS, **changes}
    light, full, sparse = scores_of(made, H)
    tau, tau_sparse, kl = (settings[name] for name in ("dense_temperature", "sparse_temperature", "full_kl"))
    expected = {
        "dense": contrastive(light, tau),
        "sparse": contrastive(sparse, tau_sparse),
        "flops": 0.01 * (4 / 8) ** 2 * float((made["sparse"].mean(axis=0) ** 2).sum()),
        "full_dense": contrastive(full, tau),
        "kl_dense": kl * divergence(light / tau, full / tau),
        "kl_sparse": kl * divergence(sparse / tau_sparse, full / tau),
    }
    assert all(value > 1e-4 for value in expected.values()), expected  # each of them is seen
    assert found(stage(**changes), made)[0] == pytest.approx(expected, rel=1e-4)


def test_a_stage_without_the_full_model_has_three_losses() -> None:
    made = {name: part for name, part in outputs().items() if name != "full_dense"}
    assert found(stage(full_kl=0.0), made)[0].keys() == {"dense", "sparse", "flops"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup": 0.4, "decay": None}, [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"warmup": 0.0, "decay": 0.2}, [*[1.0] * 9, 0.5]),
        ({"warmup": 0.2, "decay": 0.3}, [0.5, *[1.0] * 7, 2 / 3, 1 / 3]),
        ({"warmup": 0.0, "decay": 1.0}, [step / 10 for step in range(10, 0, -1)]),
    ],
)
def test_the_learning_rate_by_step(settings: dict[str, float | str], expected: list[float]) -> None:
    made = stage(steps=10, **settings)
    assert [schedule(step, made) for step in range(10)] == pytest.approx(expected)
