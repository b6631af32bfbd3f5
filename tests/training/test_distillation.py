import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightretriever.artifacts.training.losses import distillation_loss

NAN = math.nan


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


@settings(max_examples=60)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4))
def test_the_loss_is_finite_and_not_below_zero(target: list[float]) -> None:
    loss = distillation_loss(torch.zeros(1, 4), torch.tensor([target]))
    assert torch.isfinite(loss)
    assert loss >= -1e-6
