"""What pyproject.toml can't say: how the compiled part, artifacts/cpp, is built."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

# For no processor in particular: the code chooses its instructions when it is loaded. Without contraction, all give the
# same bits.
setup(
    ext_modules=[
        Pybind11Extension(
            "artifacts.kernels",
            ["artifacts/cpp/kernels.cpp"],
            depends=["setup.py", *sorted(map(str, Path("artifacts/cpp").glob("*.hpp")))],
            cxx_std=17,
            extra_compile_args=["-O3", "-ffp-contract=off", "-Wall", "-Wextra"],
        )
    ]
)
