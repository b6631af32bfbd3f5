"""Shared by the tests of training: a tiny model, and it loaded."""

from tests.pipeline.conftest import backbone, model_folder

__all__ = ["backbone", "model_folder"]
