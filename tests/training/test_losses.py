"""Losses against cases worked out by hand."""

import torch

from lightretriever.artifacts.training.losses import (
    BatchLayout,
    flops_weight,
    sparse_scores,
)
from lightretriever.artifacts.training.recipe import FlopsRecipe
from lightretriever.artifacts.training.types import Batch, Example, StepContext, TrainingSet


def test_sparse_scores_send_gradients_to_the_terms_of_the_query_alone() -> None:
    documents = torch.ones(1, 4, requires_grad=True)
    sparse_scores([torch.tensor([2, 2])], documents, torch.tensor([1.0, 1.0, 5.0, 1.0])).sum().backward()
    assert documents.grad is not None
    assert documents.grad.tolist() == [[0.0, 0.0, 10.0, 0.0]]


def test_the_regulariser_grows_quadratically_to_its_weight() -> None:
    settings = FlopsRecipe(weight=1.0, warmup=4)
    found = [flops_weight(settings, StepContext(step, 12, seed=0, batch=0)) for step in (0, 1, 3, 9)]
    assert found == [1 / 16, 1 / 4, 1.0, 1.0]
    assert flops_weight(FlopsRecipe(weight=2.0), StepContext(1, 12, seed=0, batch=0)) == 2.0 / 4  # a third of the stage


def test_what_is_relevant_to_a_query_is_no_negative_of_it() -> None:
    examples = [Example(0, "a", "Who is it?", "d0"), Example(1, "b", " who is IT? ", "d1"), Example(2, "c", "x", "d2")]
    documents = {"d0": "first", "d1": "second", "d2": "third", "d3": "Second ", "d4": "fourth"}
    names = list(documents)
    batch = Batch(
        TrainingSet("s", ("i",), 1.0, examples, documents),
        examples,
        [["d0", "d3"], ["d1", "d4"], ["d2", "d0"]],
        [0, 0, 0],
    )
    layout = BatchLayout.of(batch, names, list(documents.values()), [[1], [1], [2]])
    assert layout.positives.tolist() == [0, 1, 2]
    assert layout.hidden.int().tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
