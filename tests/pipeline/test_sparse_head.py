from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lightretriever.artifacts.pipeline import language_model
from lightretriever.artifacts.pipeline.language_model import quantise_top_k
from tests.support.states import padded_weights


def naive(hidden: torch.Tensor, head: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The formula as it is written, with the (B, T, V) tensor."""
    logits = hidden @ head.T
    padding = torch.arange(hidden.shape[1])[None, :] >= lengths[:, None]
    logits = logits.masked_fill(padding[:, :, None], -torch.inf)
    return torch.log1p(torch.relu(logits)).amax(dim=1)


@pytest.mark.parametrize("slice_elements", [1, 200, 2**26])
def test_values_and_gradients_equal_the_formula(slice_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "SLICE_ELEMENTS", slice_elements)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(4, 9, 16, generator=generator, dtype=torch.float64).requires_grad_()
    head = torch.randn(50, 16, generator=generator, dtype=torch.float64).requires_grad_()
    lengths = torch.tensor([9, 1, 4, 7])
    upstream = torch.randn(4, 50, generator=generator, dtype=torch.float64)
    results = []
    for function in (naive, padded_weights):
        weights = function(hidden, head, lengths)
        gradients = torch.autograd.grad((weights.double() * upstream).sum(), (hidden, head))
        results.append((weights.double(), *gradients))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert results[1][1][1, 1:].abs().max() == 0.0  # padding gets no gradient


def test_no_tensor_of_all_positions_and_terms_is_built() -> None:
    """B·T·V floats would be 2 GB here; the largest tensor that is allocated must stay far below."""
    hidden, head = torch.randn(4, 500, 8), torch.randn(250_000, 8)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            output = func(*args, **(kwargs or {}))
            for tensor in output if isinstance(output, tuple | list) else [output]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return output

    watch: Callable[[], TorchDispatchMode] = Watch
    with torch.inference_mode(), watch():
        padded_weights(hidden, head, torch.full((4,), 500))
    assert 0 < largest <= language_model.SLICE_ELEMENTS < hidden.shape[0] * hidden.shape[1] * head.shape[0]


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([None, 1, 5, 40]))
def test_top_k_equals_sorting_by_impact_then_id(seed: int, vocabulary: int, top_k: int | None) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.integers(0, 6, (3, vocabulary)) / 100  # many ties and zeros
    for row, (terms, impacts) in zip(weights, quantise_top_k(torch.from_numpy(weights), top_k), strict=True):
        expected = {term: round(100 * weight) for term, weight in enumerate(row) if round(100 * weight) > 0}
        best = sorted(expected, key=lambda term: (-expected[term], term))[: top_k or vocabulary]
        assert terms.tolist() == sorted(best)
        assert impacts.tolist() == [expected[term] for term in sorted(best)]


def test_impacts_never_overflow() -> None:
    ((_, impacts),) = quantise_top_k(torch.tensor([[1e9, 0.5]]), None)
    assert impacts.tolist() == [65535, 50]
