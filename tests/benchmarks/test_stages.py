"""How long each stage of a search takes by itself, another query in every round.

pytest tests/benchmarks --bundle BUNDLE --queries FOLDER --benchmark-autosave
"""

from typing import Any, Final

import pytest
from lightretriever.loadtest.stage_calls import Calls, Inputs

_STAGES: Final = (
    "tokenize",
    "encode_sparse",
    "encode_dense",
    "encode",
    "dense",
    "sparse",
    "rescore",
    "fuse",
    "fetch",
    "serialise",
)


@pytest.mark.parametrize("stage", _STAGES)
def test_stage(benchmark: Any, calls: Calls, inputs: Inputs, stage: str) -> None:
    """Time the stage."""
    call, count = calls[stage], len(inputs.texts)
    numbers = iter(list(range(count)) * 2)
    benchmark.pedantic(call, setup=lambda: ((next(numbers),), {}), rounds=count, warmup_rounds=count)
