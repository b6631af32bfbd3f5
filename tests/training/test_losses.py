"""Losses of a contrastive step by the papers' formulas in NumPy, and batches, which depend on their step alone."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.training.loop import schedule
from lightretriever.artifacts.training.losses import BatchLayout, contrastive_objective, distillation_loss, flops_weight
from lightretriever.artifacts.training.mixture import Batch, Example, Mixture, StepContext, TrainingSet
from lightretriever.artifacts.training.recipe import ContrastiveStage, FlopsRecipe
from lightretriever.artifacts.training.teachers import ensemble
from tests.support.wordings import raises

Array = NDArray[np.float64]
B, M, H, V = 3, 6, 8, 12
POSITIVES = np.array([0, 2, 4])
HIDDEN = np.zeros((B, M), dtype=bool)
HIDDEN[0, 5] = HIDDEN[2, 1] = True
QUERIES = [[1, 1, 7], [3], [7, 9, 11, 3]]
CONTEXT = StepContext(step=3, steps=30, seed=1, batch=3)
SETTINGS = {"dense_temperature": 0.05, "sparse_temperature": 0.7, "full_kl": 0.3, "matryoshka": []}


def stage(**changes: object) -> ContrastiveStage:
    flops = FlopsRecipe(weight=0.01, warmup=8)
    return ContrastiveStage.model_validate({"kind": "contrastive", "steps": 30, "flops": flops, **SETTINGS, **changes})


def layout() -> BatchLayout:
    queries = [torch.tensor(query) for query in QUERIES]
    return BatchLayout(queries, torch.from_numpy(POSITIVES), torch.from_numpy(HIDDEN))


def outputs() -> dict[str, Array]:
    random = np.random.default_rng(3)
    shapes = {"light": (B, H), "dense": (M, H), "sparse": (M, V), "full_dense": (B, H)}
    made = {name: random.normal(size=shape) for name, shape in shapes.items()}
    return made | {"sparse": np.log1p(np.maximum(made["sparse"], 0))}


IDF = np.random.default_rng(4).uniform(0.5, 3, size=V)


def log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


def cosines(queries: Array, documents: Array) -> Array:
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    products: Array = queries @ documents.T / lengths
    return products


def contrastive(scores: Array, temperature: float) -> float:
    """-ln( e^{s(q,d+)/τ} / Σ_d e^{s(q,d)/τ} ), without the documents that are no negatives."""
    logs = log_softmax(np.where(HIDDEN, -1e9, scores / temperature))
    return float(-logs[np.arange(B), POSITIVES].mean())


def divergence(student: Array, target: Array) -> float:
    """KL(softmax(target) ‖ softmax(student)), without the documents that are no negatives."""
    wanted, made = (log_softmax(np.where(HIDDEN, -1e9, logits)) for logits in (target, student))
    return float((np.exp(wanted) * (wanted - made)).sum(axis=1).mean())


def scores_of(made: dict[str, Array], size: int) -> tuple[Array, Array, Array]:
    """Dense scores of light and of whole queries by the first `size` values, and sparse scores."""
    light, full = (cosines(made[name][:, :size], made["dense"][:, :size]) for name in ("light", "full_dense"))
    sparse = [
        [sum(IDF[token] * document[token] for token in query) for document in made["sparse"]] for query in QUERIES
    ]
    return light, full, np.array(sparse)


def found(stage: ContrastiveStage, made: dict[str, Array], teachers: Array | None = None) -> dict[str, float]:
    leaves = {name: torch.from_numpy(part).float() for name, part in made.items()}
    logits = None if teachers is None else torch.from_numpy(teachers).float()
    losses, _ = contrastive_objective(leaves, layout(), stage, torch.from_numpy(IDF).float(), CONTEXT, logits)
    return {name: float(loss) for name, loss in losses.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"full_kl": 1.4, "contrastive": 0.4},
        {"dense_temperature": 0.3, "sparse_temperature": 2.5},
        {"matryoshka": [2, 5]},
    ],
)
def test_every_loss_of_a_step_is_its_formula(changes: dict[str, Any]) -> None:
    """Of every prefix of the dense vectors a contrastive loss, and a KL to the full model's scores of the same prefix;
    the sparse leg follows the scores of whole vectors."""
    made, settings = outputs(), {"contrastive": 1.0, **SETTINGS, **changes}
    prefixes = [scores_of(made, size) for size in (*settings["matryoshka"], H)]
    _, full, sparse = prefixes[-1]
    tau, tau_sparse, kl = (settings[name] for name in ("dense_temperature", "sparse_temperature", "full_kl"))
    share = settings["contrastive"]
    expected = {
        "dense": share * sum(contrastive(light, tau) for light, _, _ in prefixes),
        "sparse": share * contrastive(sparse, tau_sparse),
        "flops": 0.01 * (4 / 8) ** 2 * float((made["sparse"].mean(axis=0) ** 2).sum()),
        "full_dense": share * sum(contrastive(whole, tau) for _, whole, _ in prefixes),
        "kl_dense": kl * sum(divergence(light / tau, whole / tau) for light, whole, _ in prefixes),
        "kl_sparse": kl * divergence(sparse / tau_sparse, full / tau),
    }
    assert all(value > 1e-4 for value in expected.values()), expected  # each of them is seen
    assert found(stage(**changes), made) == pytest.approx(expected, rel=1e-4)


def test_a_stage_without_the_full_model_has_three_losses() -> None:
    made = {name: part for name, part in outputs().items() if name != "full_dense"}
    assert found(stage(full_kl=0.0), made).keys() == {"dense", "sparse", "flops"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup": 0.4, "decay": None}, [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"warmup": 0.0, "decay": 0.2}, [*[1.0] * 9, 0.5]),
        ({"warmup": 0.2, "decay": 0.3}, [0.5, *[1.0] * 7, 2 / 3, 1 / 3]),
        ({"warmup": 0.0, "decay": 1.0}, [step / 10 for step in range(10, 0, -1)]),
        ({"warmup": 0.0, "decay": 0.4, "minimum_rate": 0.5}, [*[1.0] * 7, 0.875, 0.75, 0.625]),
        (
            {"warmup": 0.2, "schedule": "cosine", "minimum_rate": 0.1},
            [0.5, 1.0, *(0.1 + 0.9 * (1 + math.cos(math.pi * done / 8)) / 2 for done in range(8))],
        ),
    ],
)
def test_the_learning_rate_by_step(settings: dict[str, float | str], expected: list[float]) -> None:
    made = stage(steps=10, **settings)
    assert [schedule(step, made) for step in range(10)] == pytest.approx(expected)


def test_the_ensemble_is_equations_7_and_8_over_each_query_s_candidates() -> None:
    scores = np.array(
        [
            [[3.0, 1.0, 2.0], [5.0, 5.0, 5.0], [1.0, np.nan, 0.0]],
            [[-10.0, 30.0, 10.0], [0.0, 1.0, 4.0], [1.0, 2.0, 3.0]],
        ],
        dtype=np.float32,
    )
    first = np.array([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [1.0, np.nan, 0.0]])
    second = np.array([[0.0, 1.0, 0.5], [0.0, 0.25, 1.0], [0.0, 0.5, 1.0]])
    np.testing.assert_allclose(ensemble(scores, [3.0, 1.0], 20.0), 20 * (3 * first + second) / 4, rtol=1e-6)


@pytest.mark.parametrize("legs", [["sparse"], ["dense"], ["dense", "sparse"]])
def test_legs_follow_the_teachers_over_the_candidates_that_they_scored(legs: list[str]) -> None:
    made, weight = outputs(), 0.6
    distillation = {"teachers": [{"scores": "file.tsv"}], "weight": weight, "legs": legs}
    logits = np.full((B, M), np.nan)
    for row, columns in enumerate([[0, 1], [2, 3, 4], [4, 5]]):
        logits[row, columns] = np.random.default_rng(row).uniform(0, 30, size=len(columns))
    losses = found(stage(distillation=distillation), made, logits)
    light, _, sparse = scores_of(made, H)
    students = {"dense": light / 0.05, "sparse": sparse / 0.7}
    for leg in ("dense", "sparse"):
        rows = []
        for row in range(B):
            known = ~np.isnan(logits[row])
            wanted, own = (log_softmax(one[row : row + 1, known]) for one in (logits, students[leg]))
            rows.append(float((np.exp(wanted) * (wanted - own)).sum()))
        expected = pytest.approx(weight * np.mean(rows), rel=1e-4) if leg in legs else None
        assert losses.get(f"teachers_{leg}") == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (FlopsRecipe(weight=1.0, warmup=4), [1 / 16, 1 / 4, 1.0, 1.0]),
        (FlopsRecipe(weight=2.0), [1 / 8, 1 / 2, 2.0, 2.0]),  # a third of the stage
    ],
)
def test_the_regulariser_grows_quadratically_to_its_weight(settings: FlopsRecipe, expected: list[float]) -> None:
    assert [flops_weight(settings, StepContext(step, 12, seed=0, batch=0)) for step in (0, 1, 3, 9)] == expected


def test_a_query_without_a_target_adds_nothing() -> None:
    student = torch.tensor([[1.0, 5.0], [2.0, 0.0]], requires_grad=True)
    loss = distillation_loss(student, torch.tensor([[math.nan, math.nan], [0.0, 2.0]]))
    loss.backward()
    assert student.grad is not None
    assert (student.grad[0] == 0).all()
    assert loss.item() == pytest.approx(distillation_loss(student[1:], torch.tensor([[0.0, 2.0]])).item() / 2)


def test_only_the_student_learns() -> None:
    target = torch.tensor([[1.0, 2.0]], requires_grad=True)
    student = torch.tensor([[2.0, 1.0]], requires_grad=True)
    distillation_loss(student, target).backward()
    assert target.grad is None
    assert student.grad is not None
    # d KL / d student = softmax(student) - softmax(target)
    torch.testing.assert_close(student.grad, student.softmax(1).detach() - target.softmax(1).detach())


@pytest.mark.parametrize("target", [[30.0, math.nan, 0.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0]])
def test_distillation_is_finite_and_in_float32(target: list[float]) -> None:
    loss = distillation_loss(torch.tensor([[1.0, 0.0, 3.0]]).bfloat16(), torch.tensor([target]))
    assert loss.dtype == torch.float32
    assert 0 < loss < math.inf


def test_what_is_relevant_to_a_query_is_no_negative_of_it() -> None:
    examples = [Example("a", "Who is it?", "d0"), Example("b", " who is IT? ", "d1"), Example("c", "x", "d2")]
    documents = {"d0": "first", "d1": "second", "d2": "third", "d3": "Second ", "d4": "fourth"}
    names = list(documents)
    one = TrainingSet("s", ("i",), 1.0, examples, documents)
    batch = Batch(one, examples, [["d0", "d3"], ["d1", "d4"], ["d2", "d0"]], [0, 0, 0])
    layout = BatchLayout.of(batch, names, list(documents.values()), [[1], [1], [2]])
    assert layout.positives.tolist() == [0, 1, 2]
    assert layout.hidden.int().tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 0]]


STEPS = 1000


def make_set(name: str = "one", *, count: int = 50, negatives: int = 4, weight: float = 1.0) -> TrainingSet:
    """`count` examples, each with `negatives` negatives of its own."""
    examples = [
        Example(f"q{row}", f"query {row}", f"d{row}", tuple(f"d{row + shift}" for shift in range(1, negatives + 1)))
        for row in range(count)
    ]
    return TrainingSet(name, ("find it",), weight, examples, {})


def content(batch: Batch) -> tuple[str, list[int], list[list[str]]]:
    return batch.set.name, [batch.set.examples.index(example) for example in batch.examples], batch.candidates


def test_any_step_gives_what_running_through_gives() -> None:
    """Whatever number of steps is to come."""
    sets = [make_set("one", weight=3), make_set("two", count=30)]
    through, few, other = (
        Mixture(sets, 8, negatives=2, batches=batches, seed=seed) for batches, seed in ((STEPS, -1), (60, -1), (60, 6))
    )
    run = [content(through.batch(step)) for step in range(60)]
    assert [content(few.batch(step)) for step in reversed(range(60))] == run[::-1]
    assert content(Mixture(sets, 8, negatives=2, batches=STEPS, seed=-1).batch(31)) == run[31]
    assert [content(other.batch(step)) for step in range(60)] != run


def test_an_epoch_repeats_nothing_and_the_next_has_another_order() -> None:
    mixture = Mixture([make_set(count=50)], batch_size=8, negatives=0, batches=STEPS, seed=1)
    epochs = [[row for step in range(6) for row in content(mixture.batch(6 * epoch + step))[1]] for epoch in range(3)]
    assert all(len(set(rows)) == 48 for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_sets_come_by_weight_and_batches_are_homogeneous() -> None:
    sets = [make_set("one", weight=6), make_set("two", weight=3), make_set("three", weight=1)]
    mixture = Mixture(sets, batch_size=4, negatives=1, batches=STEPS, seed=0)
    batches = [mixture.batch(step) for step in range(1000)]
    share = Counter(batch.set.name for batch in batches)
    assert share["one"] == pytest.approx(600, abs=60)
    assert share["three"] == pytest.approx(100, abs=40)
    assert all(example in batch.set.examples for batch in batches for example in batch.examples)


def test_negatives_are_drawn_of_the_own_ones_best_first() -> None:
    one = make_set(negatives=5)
    many = Mixture([one], batch_size=10, negatives=3, batches=STEPS, seed=0)
    seen = set()
    for step in range(10):
        batch = many.batch(step)
        for example, (positive, *negatives) in zip(batch.examples, batch.candidates, strict=True):
            assert positive == example.positive
            places = [example.negatives.index(name) for name in negatives]
            assert len(places) == 3
            assert places == sorted(set(places))
            seen.add(tuple(places))
    assert len(seen) > 5
    batch = Mixture([one], batch_size=10, negatives=9, batches=STEPS, seed=0).batch(0)
    assert [tuple(row[1:]) for row in batch.candidates] == [example.negatives for example in batch.examples]


def test_sets_too_small_are_refused() -> None:
    with raises(RecipeError, naming="stages.batch_size"):
        Mixture([make_set(count=5)], batch_size=6, negatives=0, batches=STEPS, seed=0)


def test_each_query_of_a_batch_has_one_of_the_set_s_instructions_drawn_anew() -> None:
    one = replace(make_set(), instructions=("find", "look for", "search"))
    mixture = Mixture([one], batch_size=25, negatives=0, batches=40, seed=5)
    drawn = [mixture.batch(place).instructions for place in range(40)]
    counts = Counter(number for row in drawn for number in row)
    assert counts.keys() == {0, 1, 2}
    assert all(270 < count < 400 for count in counts.values()), counts
    assert len({tuple(row) for row in drawn}) == 40
