"""The model that encodes documents written as fields alone. There is none unless the settings name a recipe.

This is the only module of the service that loads the pipeline, and it does so in the process's own memory: searches
never ask the model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.corpus.beir import Document
from lightretriever.artifacts.errors import MissingExtraError

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.later import LaterDocuments

__all__ = ["ENCODE_DOCUMENT", "DocumentEncoder", "EncodedDocument"]

ENCODE_DOCUMENT: Final = "encode_document"
"""The lane of the model. It has one thread, so the model reads one document at a time."""


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """A document's vector (D,) of length 1, None without a dense leg, its impacts by term, and whether the model read
    its beginning only."""

    vector: npt.NDArray[np.float32] | None
    impacts: dict[str, int]
    cut: bool


class DocumentEncoder:
    """Encodes documents as `lightretriever upsert` does, to the same vectors and impacts. Not thread-safe."""

    def __init__(self, later: "LaterDocuments") -> None:
        self._later = later

    @classmethod
    def open(cls, recipe: Path, manifest: Manifest, most_impact: int) -> Self:
        """Load the model of a recipe, for an index whose impacts are 1 to `most_impact`, beside the bundle with this
        manifest or written from it.

        MissingExtraError without the pipeline, RecipeError and ModelError if there is no such model, ResumeError if the
        bundle was made with another one.
        """
        try:
            from lightretriever.artifacts.pipeline.later import LaterDocuments
            from lightretriever.artifacts.pipeline.recipe import load_recipe
        except ModuleNotFoundError as error:
            raise MissingExtraError.of(error) from error
        return cls(LaterDocuments.open(load_recipe(recipe), manifest, most_impact))

    @property
    def model(self) -> str:
        """The model's name."""
        return self._later.encoders.name

    def encode(self, document: Document) -> EncodedDocument:
        """Encode a document. ModelError and TokenizerError for a text that the model can't read, DocumentError for an
        impact that the index can't have."""
        before = self._later.cut
        ((vector, impacts),) = self._later.encode([document])
        return EncodedDocument(vector, dict(impacts), self._later.cut > before)
