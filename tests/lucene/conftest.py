from collections.abc import Iterator
from pathlib import Path

import pytest

from lightretriever.artifacts.sparse.index import ImpactIndex
from tests.lucene.support import Collection, random_collection


@pytest.fixture(scope="session")
def collection() -> Collection:
    return random_collection(count=1500, vocabulary=200, seed=1)


@pytest.fixture(scope="session")
def written(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "lucene"
    collection.write(path)
    return path


@pytest.fixture(scope="session")
def index(written: Path) -> Iterator[ImpactIndex]:
    with ImpactIndex.open(written) as opened:
        yield opened
