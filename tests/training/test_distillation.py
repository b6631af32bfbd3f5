import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.training.losses import distillation_loss, ensemble

NAN = math.nan


def of(*teachers: list[list[float]]) -> torch.Tensor:
    return torch.tensor(teachers)


def test_the_ensemble_by_hand() -> None:
    scores = of([[10.0, 20.0, 15.0], [0.0, -1.0, -4.0]], [[0.9, 0.1, 0.3], [5.0, 5.0, 7.0]])
    found = ensemble(scores, torch.tensor([1.0, 3.0]), 30.0)
    # Teacher 1: [0, 1, 1/2] and [1, 3/4, 0]; teacher 2: [1, 0, 1/4] and [0, 0, 1]; weights 1/4 and 3/4.
    expected = torch.tensor([[0.75, 0.25, 0.3125], [0.25, 0.1875, 0.75]]) * 30
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float32


def test_a_teachers_scale_does_not_matter() -> None:
    scores = torch.tensor(np.random.default_rng(1).normal(size=(2, 4, 5)))
    stretched = scores * torch.tensor([1000.0, 0.01])[:, None, None] + torch.tensor([-7.0, 3.0])[:, None, None]
    weights = torch.tensor([1.0, 1.0])
    torch.testing.assert_close(ensemble(scores, weights, 10.0), ensemble(stretched, weights, 10.0), rtol=0, atol=1e-3)


def test_equal_scores_are_zeros() -> None:
    scores = of([[3.0, 3.0, 3.0]], [[1.0, 2.0, 1.0]])
    found = ensemble(scores, torch.tensor([1.0, 1.0]), 2.0)
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.0]]))


def test_the_loss_by_hand() -> None:
    target = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    student = torch.tensor([[0.0, 0.0], [math.log(4.0), 0.0]])
    first = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    second = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert distillation_loss(student, target).item() == pytest.approx((first + second) / 2, rel=1e-6)


def test_the_loss_without_some_candidates_is_that_of_the_others() -> None:
    student = torch.tensor([[1.0, -2.0, 0.5, 9.0]], requires_grad=True)
    target = torch.tensor([[0.3, 2.0, NAN, NAN]])
    loss = distillation_loss(student, target)
    torch.testing.assert_close(loss, distillation_loss(student[:, :2], target[:, :2]))
    loss.backward()
    assert student.grad is not None
    assert (student.grad[0, 2:] == 0).all()
    assert (student.grad[0, :2] != 0).all()


def test_a_query_without_a_target_adds_nothing() -> None:
    student = torch.tensor([[1.0, 5.0], [2.0, 0.0]], requires_grad=True)
    loss = distillation_loss(student, torch.tensor([[NAN, NAN], [0.0, 2.0]]))
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


def test_half_precision_students_are_compared_in_float32() -> None:
    loss = distillation_loss(torch.tensor([[1.0, NAN, 3.0]]).nan_to_num().bfloat16(), torch.tensor([[30.0, NAN, 0.0]]))
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), min_size=2, max_size=2),
    st.floats(0.5, 50),
)
def test_targets_lie_between_zero_and_the_scale(scores: list[list[float]], scale: float) -> None:
    target = ensemble(torch.tensor(scores)[:, None], torch.tensor([2.0, 1.0]), scale)
    assert ((target >= 0) & (target <= scale * (1 + 1e-6))).all()
    loss = distillation_loss(torch.zeros(1, 4), target)
    assert torch.isfinite(loss)
    assert loss >= -1e-6
