"""How long the fault tests run, and where their figures go."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from research.pages.objectives import OBJECTIVES, record
from tests.service.process import DOCUMENTS, Place
from tests.support.tiny import make_tiny_bundle

COMMAND = "make faults"

Figure = Callable[..., None]


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the test is to run at its full length."""
    return bool(request.config.getoption("full_faults"))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Iterator[Figure]:
    """Take figures of a test: `figure(key, value, unit)`. They are recorded when the test has passed at full length.

    A key of `OBJECTIVES` is a row of the table; other words of a figure are kept with it.
    """
    rows: list[dict[str, Any]] = []

    def take(key: str, value: float, unit: str, **more: object) -> None:
        if key not in OBJECTIVES:
            raise KeyError(f"{key}: put it into research/pages/objectives.py")
        rows.append({"key": key, "value": value, "unit": unit, **more})

    failed = request.session.testsfailed
    yield take
    file: Path | None = request.config.getoption("record_faults")
    if file is not None and rows and request.session.testsfailed == failed:
        record(file, rows, COMMAND)


@pytest.fixture(scope="session")
def two_versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two bundles of the same ids, with other texts and vectors. Read only."""
    folder = tmp_path_factory.mktemp("two")
    first, second = (make_tiny_bundle(folder / f"v{seed}", documents=DOCUMENTS, seed=seed).path for seed in (1, 2))
    return first, second


@pytest.fixture
def place(two_versions: tuple[Path, Path], tmp_path: Path) -> Place:
    """A place to serve them from."""
    return Place(tmp_path, two_versions)
