"""The command `size`: disk and memory of a bundle of more documents."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.size import PartSize, part_sizes
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.summary import Summary, megabytes

__all__ = ["SizeSummary", "size"]

_FEW: Final = 10_000


class SizeSummary(Summary):
    """Of `size`: `measured` documents are in the bundle, and `documents` would be in the other one. `memory` bytes are
    those that searches read all over."""

    command: Literal["size"] = "size"
    measured: int
    documents: int
    parts: list[PartSize]
    bytes: int
    memory: int

    def made(self) -> Iterator[str]:
        """One line a part, and the sums."""
        yield f"{self.path}: {self.measured:,} documents; as large ones, {self.documents:,} would take:"
        width = max(len(part.name) for part in self.parts)
        for part in self.parts:
            each = f"{part.bytes_per_document:,.1f} bytes a document" if part.bytes_per_document else "fixed"
            yield f"{part.name:{width}}  {megabytes(part.bytes):>14}  {each}"
        yield f"{'on disk':{width}}  {megabytes(self.bytes):>14}"
        yield f"{'in memory':{width}}  {megabytes(self.memory):>14}  page cache, which processes share"
        if self.measured < _FEW:
            yield f"note: so few documents say little of the postings of many; build a sample of {_FEW:,} or more"


def size(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder: a sample of the corpus.", show_default=False)],
    documents: Annotated[int, typer.Option(min=1, help="Documents of the whole corpus.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Estimate the disk and memory of a larger bundle from the bundle of a sample."""
    with running("size", as_json=as_json) as job:
        manifest = read_manifest(bundle)
        parts = part_sizes(manifest, documents)
        job.summary = SizeSummary(
            path=str(bundle),
            measured=manifest.documents,
            documents=documents,
            parts=parts,
            bytes=sum(part.bytes for part in parts),
            memory=sum(part.bytes for part in parts if part.in_memory),
        )
