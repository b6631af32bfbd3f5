"""What the software calls itself in what it writes."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["generator"]


def generator() -> str:
    """Name and version of the software, for `Manifest.generator`."""
    name = "lightretriever-search"
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:  # run from a checkout that is not installed
        return name
