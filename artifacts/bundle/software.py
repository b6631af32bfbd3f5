"""The name of the software in the files that it writes."""

from importlib.metadata import PackageNotFoundError, version


def generator() -> str:
    """Name and version of the software, for `Manifest.generator`."""
    name = "lightretriever-search"
    return " ".join(filter(None, (name, package_version(name))))


def package_version(name: str) -> str | None:
    """Version of a distribution, None where it is not installed, such as this one in a bare checkout."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
