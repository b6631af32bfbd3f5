from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lightretriever.artifacts.pipeline import language_model
from lightretriever.artifacts.pipeline.language_model import instruction_prefix, quantise_top_k
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import SHARED, packed_states, token_states, visible
from tests.support.models import load, padded_weights, token_states_naive

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
TOKENS = torch.tensor([5, 17, 17, 200, 3, 96, 41])


def test_one_pass_under_the_block_mask_equals_token_by_token(
    any_backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = instruction_prefix(any_backbone, INSTRUCTION)
    with torch.inference_mode():
        naive = token_states_naive(any_backbone, prefix, TOKENS)
        packed = token_states(any_backbone, prefix, TOKENS)
        monkeypatch.setattr("lightretriever.artifacts.pipeline.states._ROW_BLOCKS", 2)
        rows = token_states(any_backbone, prefix, TOKENS)
    torch.testing.assert_close(packed, naive, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(rows, naive, atol=2e-5, rtol=1e-4)
    assert (naive[1] == naive[2]).all()
    assert (naive[0] - naive[1]).abs().max() > 1e-2  # tokens do differ: equality above is no accident


@pytest.mark.parametrize(
    ("both_ways", "expected"),
    [
        (False, ["100000", "110000", "111000", "111100", "110010", "110011"]),
        (True, ["110000", "110000", "111100", "111100", "110011", "110011"]),
    ],
)
def test_a_block_sees_the_prefix_and_itself_and_the_prefix_no_block(both_ways: bool, expected: list[str]) -> None:
    """With attention both ways, it also sees its later positions."""
    (seen,) = visible(torch.tensor([[SHARED, SHARED, 0, 0, 1, 1]]), both_ways=both_ways).int().tolist()
    assert ["".join(map(str, row)) for row in seen] == expected


def test_with_attention_both_ways_every_position_sees_all_of_its_text_and_no_other(any_backbone: Backbone) -> None:
    backbone = replace(any_backbone, attention="bidirectional")
    one, other, longer = [5, 17, 200, 3], [5, 17, 200, 41], [96, 7, 8, 9, 10, 11]
    with torch.inference_mode():
        packed = packed_states(backbone, [longer, one, other], 64)
        alone = [packed_states(backbone, [ids], 64).hidden for ids in (longer, one, other)]
        causal = packed_states(any_backbone, [one, other], 64)
    for (start, end), states in zip(packed.spans, alone, strict=True):
        torch.testing.assert_close(packed.hidden[start:end], states[: end - start], atol=2e-4, rtol=1e-3)
    firsts = [packed.hidden[start] for start, _ in packed.spans[1:]]
    assert (firsts[0] - firsts[1]).abs().max() > 1e-2  # the texts differ in the last token alone
    torch.testing.assert_close(causal.hidden[0], causal.hidden[4], atol=2e-5, rtol=1e-4)


def test_mean_vectors_are_means_of_the_texts_own_states(backbone: Backbone) -> None:
    sequences = [backbone.frame([5, 17, 200]), backbone.frame([96]), backbone.frame([7, 8, 9, 10])]
    with torch.inference_mode():
        packed = packed_states(backbone, sequences, 64)
        means = packed.dense(replace(backbone, pooling="mean"))
        wanted = [packed.hidden[start + 1 : end].mean(dim=0) for start, end in packed.spans]
    torch.testing.assert_close(means, torch.stack(wanted))


def test_everything_lies_on_the_models_own_device(model_folder: Path, tmp_path: Path) -> None:
    """Token ids come from the CPU, the model may lie elsewhere. The device `meta` computes shapes only, and mixes with
    the CPU as little as CUDA does, so a tensor left behind shows on a machine without a GPU."""
    backbone = load(model_folder)
    torch.nn.Module.to(backbone.model, "meta")
    prefix = instruction_prefix(backbone, INSTRUCTION)
    with torch.inference_mode():
        states = token_states(backbone, prefix, TOKENS)
    assert states.device.type == "meta"
    assert states.shape == (len(TOKENS), backbone.hidden_size)


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
