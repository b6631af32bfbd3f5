"""Shared by the tests of training: a tiny model, and it loaded; a toy problem with all that a training run needs."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import backbone, model_folder
from tests.support.toy import save_toy_model, write_toy_set

__all__ = ["backbone", "model_folder", "toy"]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a training set and a test set whose documents were never seen."""
    folder = tmp_path_factory.mktemp("toy")
    save_toy_model(folder / "model")
    save_toy_model(folder / "tied", tied=True)
    write_toy_set(folder / "pairs", "train", 400, seed=1)
    write_toy_set(folder / "dev", "dev", 60, seed=2)
    write_toy_set(folder / "held-out", "test", 60, seed=3)
    return folder
