"""Fixtures for all tests: the tiny bundle, built once. No test asks the model hub, which it would do for minutes."""

import gc
import os
import threading
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is first imported, below

# Threads of PyTorch and Faiss wait for each other by spinning, and two processes of pytest-xdist have a thread on every
# core: without this, training takes three times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from tests.support.cluster import shared_cluster
from tests.support.machine import QUICK_JAVA
from tests.support.tiny import BundleOf, make_tiny_bundle

# No deadline per example: a busy machine would fail the test, not the code. Half as many examples as usual, new ones
# each time.
settings.register_profile("tests", deadline=None, max_examples=50)
settings.load_profile("tests")

#: What takes longest, or waits longest, comes first: no process is left with a long file at the end.
FIRST = ("service/test_workers", "training", "cluster", "pipeline", "service", "faults", "client", "live", "research")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the fault tests, see tests/faults, and of the slow ones."""
    parser.addoption("--slow", action="store_true", help="run the slow tests, too")
    group = parser.getgroup("faults")
    group.addoption("--full-faults", action="store_true", help="run the fault tests at their full length")
    group.addoption("--record-faults", type=Path, metavar="FILE", help="write the figures of the fault tests to FILE")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the adapters' tests, which import what `make slow` alone installs, to `--slow`."""
    return True if collection_path.name == "test_adapters.py" and not config.getoption("slow") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without the cycle collector, which would look at a million lasting objects again and again, and leave to
    it only what tests make."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `--full-faults` what has no short form, and to `--slow` what takes long or needs tools of its own."""
    for option in ("full_faults", "slow"):
        if not config.getoption(option):
            items[:] = [item for item in items if item.get_closest_marker(option) is None]
    first = [f"tests/{name}" for name in FIRST]
    items.sort(key=lambda item: next((place for place, name in enumerate(first) if item.nodeid.startswith(name)), 99))


@pytest.fixture(scope="session", autouse=True)
def jvm() -> None:
    """Start this process's JVM, see `tests.support.machine`."""
    with patch.dict(os.environ, QUICK_JAVA):
        start_jvm()


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Nothing waits for the disk: no test turns the power off, and what a killed process wrote is there without."""
    with patch.object(os, "fsync", lambda _: None):
        yield


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A whole small bundle, whose terms are tokens. Read only: who changes files copies it first."""
    return make_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny")


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> BundleOf:
    """Return the tiny bundle with a vocabulary, and with a dense leg or without, whose year is a field. Read only."""

    @cache
    def made(vocabulary: VocabularyKind, dense: bool = True) -> Bundle:
        path = tmp_path_factory.mktemp("bundle") / vocabulary
        return make_tiny_bundle(path, vocabulary=vocabulary, dense=dense, fields={"year": "number"})

    return made


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faiss searches in another thread, as it does in a large index on a machine with free processors."""
    monkeypatch.setattr("lightretriever.service.backends.local.hands_over", lambda *_: True)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set when the test is over, if not before."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture(scope="session")
def tiny_path(tiny_bundle: Bundle) -> Path:
    return tiny_bundle.path


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real cluster, see `tests.support.cluster`. Skips without one."""
    base = tmp_path_factory.getbasetemp()
    with shared_cluster(base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) as url:
        yield url
