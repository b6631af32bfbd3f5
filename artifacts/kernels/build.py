"""How setuptools builds the compiled part; pyproject.toml names this class."""

from pathlib import Path

from pybind11 import get_include
from pybind11.setup_helpers import build_ext
from setuptools import Extension

__all__ = ["BuildKernels"]


class BuildKernels(build_ext):
    """Adds pybind11's headers, and compiles again when a header beside the source has changed."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension."""
        ext.include_dirs.append(get_include())
        ext.depends = sorted(str(header) for header in Path(ext.sources[0]).parent.glob("*.hpp"))
        super().build_extension(ext)
