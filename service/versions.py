"""Versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["package_version"]


def package_version(name: str) -> str:
    """Give the version of a distribution, or "not installed", as for a bare checkout."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
