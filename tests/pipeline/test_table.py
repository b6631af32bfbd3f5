from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.pipeline import table as table_module
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.table import instruction_prefix
from lightretriever.artifacts.tokens.table import TokenTable, write_table

from tests.support.states import token_states_naive

INSTRUCTION = "Given a question, retrieve passages that answer it"
PART = 100
make_table = partial(table_module.make_table, batch=48, part=PART)


def test_every_row_equals_the_token_by_token_forward_pass(any_backbone: Backbone, tmp_path: Path) -> None:
    rows = np.load(make_table(any_backbone, INSTRUCTION, tmp_path))
    assert rows.shape == (any_backbone.vocab_size, any_backbone.hidden_size)
    assert rows.dtype == np.float32
    with torch.inference_mode():
        every = torch.arange(any_backbone.vocab_size)
        expected = token_states_naive(any_backbone, instruction_prefix(any_backbone, INSTRUCTION), every)
    np.testing.assert_allclose(rows, expected.numpy(), atol=2e-5, rtol=1e-4)


def test_lookup_mean_normalise_equals_encoding_through_the_model(backbone: Backbone, tmp_path: Path) -> None:
    """q = normalise(mean_i e(t_i)): once from the stored table, once by the model for this query's own tokens."""
    write_table(tmp_path / "task.npy", np.load(make_table(backbone, INSTRUCTION, tmp_path / "work")), "float32")
    ids = backbone.tokenizer.encode("Plays music music from the terminal")
    with torch.inference_mode():
        prefix = instruction_prefix(backbone, INSTRUCTION)
        states = token_states_naive(backbone, prefix, torch.from_numpy(ids).long())
    expected = torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy()
    mean = TokenTable.open(tmp_path / "task.npy").mean(ids)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), expected, atol=1e-5)


def test_a_stopped_table_goes_on_and_ends_the_same(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_table(backbone, INSTRUCTION, tmp_path / "whole").read_bytes()
    calls = 0
    real = table_module._rows

    def stop_at_third(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(table_module, "_rows", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        make_table(backbone, INSTRUCTION, tmp_path / "stopped")
    assert make_table(backbone, INSTRUCTION, tmp_path / "stopped").read_bytes() == whole
    parts = -(-backbone.vocab_size // PART)
    assert calls == parts + 1  # two parts were kept, only the interrupted one was begun twice
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir()) == ["plan.json", "table.npy"]


def test_another_instruction_needs_another_directory(backbone: Backbone, tmp_path: Path) -> None:
    make_table(backbone, INSTRUCTION, tmp_path)
    with pytest.raises(ResumeError, match=r"instruction: 'Given a question.*' there, 'Other' now"):
        make_table(backbone, "Other", tmp_path)
