"""Fixtures: loaded tiny models of every family, and a tiny bi-encoder."""

from pathlib import Path

import pytest

from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.sentence_models import BiEncoder, load_biencoder
from tests.support.biencoder import save_biencoder
from tests.support.models import CONFIGS, load, save_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.fixture(scope="session")
def backbone(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return load(model_folder)


@pytest.fixture(scope="session", params=sorted(CONFIGS))
def any_backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = save_model(tmp_path_factory.mktemp("models") / request.param, request.param)
    return load(folder)


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bi-encoder's folder. Read only: who changes files copies it first."""
    return save_biencoder(tmp_path_factory.mktemp("bi") / "tiny-bi")


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> BiEncoder:
    return load_biencoder(str(encoder_folder), device="cpu")
