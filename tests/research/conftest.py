"""Shared by the tests of research: queries, a bundle of words, and one that a tiny language model encoded."""

from pathlib import Path

import pytest
import yaml
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.cli import app
from typer.testing import CliRunner

from tests.loadtest.conftest import queries
from tests.support.models import save_model, write_corpus
from tests.support.tiny import make_tiny_bundle

__all__ = ["queries", "real_bundle", "word_bundle"]


@pytest.fixture(scope="session")
def word_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny bundle with words."""
    return make_tiny_bundle(tmp_path_factory.mktemp("words") / "bundle", vocabulary="words")


@pytest.fixture(scope="session")
def real_bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle that a tiny language model encoded, and the model."""
    folder = tmp_path_factory.mktemp("real")
    model = save_model(folder / "model", "llama")
    recipe = {
        "name": "tiny",
        "model": {"path": str(model), "device": "cpu"},
        "corpus": {"path": str(write_corpus(folder / "corpus.jsonl", 40)), "name": "tiny"},
        "tasks": {"web": "find pages"},
        "default_task": "web",
        "encode": {"max_length": 32, "top_k": 40},
        "index": {"dimension": 16},
        "work": str(folder / "work"),
        "output": str(folder / "bundle"),
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert CliRunner().invoke(app, ["build", str(folder / "recipe.yaml")], catch_exceptions=False).exit_code == 0
    return folder / "bundle", model
