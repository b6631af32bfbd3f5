"""The image, built once from the committed Dockerfile as an engine would build it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy import image


class Image(NamedTuple):
    """A built image."""

    tag: str
    removed_mb: dict[str, float]
    root: Path
    config: dict[str, Any]


@pytest.fixture(scope="session")
def built() -> Iterator[Image]:
    if reasons := image.missing():
        pytest.skip(f"the image can't be built here: {'; '.join(reasons)}")
    tag, removed_mb = image.build()
    with image.mounted(tag) as root:
        yield Image(tag, removed_mb, root, image.configuration(tag))
