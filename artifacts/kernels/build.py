"""How the compiled part is built: setuptools takes this class by its name in pyproject.toml."""

from pybind11 import get_include
from pybind11.setup_helpers import build_ext

__all__ = ["BuildKernels"]


class BuildKernels(build_ext):
    """Adds pybind11's headers to every extension."""

    def build_extension(self, ext: object) -> None:
        """Compile one extension."""
        ext.include_dirs.append(get_include())
        super().build_extension(ext)
