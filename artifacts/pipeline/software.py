"""What the offline results depend on besides model and data."""

from importlib.metadata import version

__all__ = ["software"]


def software() -> str:
    """Versions of torch and transformers: other ones may round differently, so a job isn't continued with them."""
    return f"torch {version('torch')}, transformers {version('transformers')}"
