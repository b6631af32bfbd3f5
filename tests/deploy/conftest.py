"""The image, built once from the committed Dockerfile as on any machine, by `make image`'s own code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scripts import image


class Image(NamedTuple):
    """A built image."""

    tag: str
    removed: dict[str, int]
    root: Path
    config: dict[str, Any]


@pytest.fixture(scope="session")
def built() -> Iterator[Image]:
    if reasons := image.missing():
        pytest.skip(f"the image can't be built here: {'; '.join(reasons)}")
    tag, removed = image.build()
    with image.mounted(tag) as root:
        yield Image(tag, removed, root, image.configuration(tag))
