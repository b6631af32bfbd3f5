"""What the benchmarks measure: a warm engine over a bundle, and queries."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.loadtest.process import ROOT
from lightretriever.loadtest.stage_calls import Calls, Inputs, calls_in_java, calls_outside_java
from lightretriever.service.search.engine import SearchEngine

_SEED: Final = 0
_MOST: Final = 2000


def pytest_addoption(parser: pytest.Parser) -> None:
    """The bundle to search, and the queries."""
    parser.addoption("--bundle", type=Path, default=ROOT / "demo" / "bundle", help="bundle to search (the demo's)")
    parser.addoption("--queries", type=Path, help="folder with queries.jsonl(.gz) (words of the documents)")


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Iterator[SearchEngine]:
    """The engine, warm."""
    with SearchEngine.open(Bundle.open(pytestconfig.getoption("--bundle"))) as engine:
        engine.warm_up()
        yield engine


@pytest.fixture(scope="session")
def inputs(engine: SearchEngine, pytestconfig: pytest.Config) -> Inputs:
    """The queries, and what searching for them gave."""
    folder = pytestconfig.getoption("--queries")
    if folder is None:
        return Inputs.of(engine, engine.parts.documents.probes(_MOST))
    texts = list(read_queries(find_file(folder, "queries")).values())
    random.Random(_SEED).shuffle(texts)
    return Inputs.of(engine, texts[:_MOST])


@pytest.fixture(scope="session")
def calls(engine: SearchEngine, inputs: Inputs) -> Calls:
    """Every stage by name."""
    task, parts = engine.bundle.manifest.default_task, engine.parts
    outside = calls_outside_java(parts.encoder, task, parts.legs["dense"], inputs)
    return {**outside, **calls_in_java(parts, task, inputs)}
