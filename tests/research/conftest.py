"""Shared by the tests of research: a bundle that a tiny language model encoded."""

from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.models import save_model
from tests.support.recipes import write_recipe


@pytest.fixture(autouse=True)
def few_warm_up_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every server that is started."""
    monkeypatch.setenv("LIGHTRETRIEVER_WARM_UP_QUERIES", "3")


@pytest.fixture(scope="session")
def real_bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle that a tiny language model encoded, and the model."""
    folder = tmp_path_factory.mktemp("real")
    model = save_model(folder / "model", "llama")
    settings = {"encode": {"max_length": 32, "top_k": 40}, "index": {"dimension": 16}}
    run("build", write_recipe(folder, model, documents=40, tasks={"web": "find pages"}, **settings))
    return folder / "bundle", model
