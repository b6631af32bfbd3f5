"""What an offline command says when it is done: a few lines for people, or one JSON object (docs/pipeline.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from lightretriever.artifacts.errors import readable
from lightretriever.artifacts.progress import duration
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

__all__ = [
    "AgreementInfo",
    "BundleSummary",
    "EncodeSummary",
    "ErrorInfo",
    "ErrorObject",
    "EvaluateSummary",
    "GeneralTableSummary",
    "Part",
    "ProblemInfo",
    "Summary",
    "TableInfo",
    "TablesSummary",
    "Text",
    "TrainSummary",
    "VerifySummary",
    "folder_size",
    "left_out",
    "megabytes",
]


Text = Annotated[str, BeforeValidator(lambda value: readable(value) if isinstance(value, str) else value)]
"""A text with a path or something else in it that need not be UTF-8."""


class Part(BaseModel):
    """A part of a summary."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class Summary(Part):
    """What all commands say: what was made lies at `path`, took `seconds`, and `next` is the command that comes next,
    null where none does."""

    command: str
    path: Text
    seconds: float = Field(default=0.0, ge=0)
    next: Text | None = None

    def made(self) -> Iterator[str]:
        """Lines that say what was made, for people."""
        yield self.path

    def text(self) -> str:
        """All of it for people."""
        lines = [*self.made(), f"took {duration(self.seconds)}"]
        return "\n".join([*lines, f"next: {self.next}"] if self.next else lines)


class AgreementInfo(Part):
    """How well a trained table agrees with the model on held-out texts: before the training, and after `epoch`, the
    one of `epochs` that was kept. `general` has the cosine and the overlap of the encoder's general table there."""

    epoch: int
    epochs: int
    cosine: tuple[float, float]
    overlap: tuple[float, float]
    general: tuple[float, float] | None = None

    def line(self) -> str:
        """For people."""
        change = "; ".join(
            f"{name} {first:.3f} -> {best:.3f}"
            for name, (first, best) in (("cosine", self.cosine), ("overlap", self.overlap))
        )
        beside = "; general table {:.3f} and {:.3f}".format(*self.general) if self.general else ""
        return f"agreement with the encoder by epoch {self.epoch} of {self.epochs}: {change}{beside}"


class TableInfo(Part):
    """A token table: `rows` tokens of `dimension` values; `head_queries` are those that the model read."""

    path: Text
    rows: int
    dimension: int
    bytes: int
    agreement: AgreementInfo | None = None
    head_queries: int = 0


class TablesSummary(Summary):
    """Of `table`, `distil-table` and `refine`: the tables by task."""

    command: Literal["table", "distil-table", "refine"]
    tables: dict[str, TableInfo]

    def made(self) -> Iterator[str]:
        """A line for each table, and one for its training."""
        for task, table in self.tables.items():
            size = f"{table.rows:,} tokens × {table.dimension}, {megabytes(table.bytes)}"
            yield f"{task}: {table.path}, {size}"
            if table.head_queries:
                yield f"  {table.head_queries:,} head queries, read by the whole model"
            if table.agreement is not None:
                yield f"  {table.agreement.line()}"


class GeneralTableSummary(Summary):
    """Of `general-table`: the table at `path` was fitted to so many documents, and queries and sentences."""

    command: Literal["general-table"]
    encoder: str
    documents: int
    queries: int
    agreement: AgreementInfo
    bytes: int

    def made(self) -> Iterator[str]:
        """The table, and its training."""
        texts = f"{self.documents:,} documents, {self.queries:,} queries and sentences"
        yield f"{self.path}: table of {self.encoder}, {megabytes(self.bytes)}, fitted to {texts}"
        yield f"  {self.agreement.line()}"


class EncodeSummary(Summary):
    """Of `encode`: of the documents the model read `encoded`, and the vectors of the `reused` were there; `removed`
    are texts of an earlier corpus. `terms` are sparse terms that the model gave all documents together, `skipped` bad
    lines of the corpus, `doubtful` given vectors that were compared and are not the encoder's, `cut` documents that are
    longer than the model reads, `shards` runs of `encode.shard_size` documents."""

    command: Literal["encode"]
    documents: int
    reused: int
    encoded: int
    removed: int
    skipped: int
    doubtful: int = 0
    cut: int
    terms: int
    dimension: int
    shards: int
    bytes: int

    def made(self) -> Iterator[str]:
        """Two lines, and those of `left_out`."""
        yield (
            f"{self.path}: {self.documents:,} documents, {self.terms:,} sparse terms in {self.shards:,} shards, "
            f"{megabytes(self.bytes)}"
        )
        yield _read(self.reused, self.encoded, self.removed)
        yield from left_out(self.skipped, self.cut)


class BundleSummary(Summary):
    """Of `index` and `build`: `version` is the manifest's digest, the other counts are those of `encode`; `index` has
    null for `reused`, `encoded`, `removed` and `doubtful`. `dimension` is null without a dense leg. A document has
    `terms` of the `vocabulary` on average, of which the share `added` is not in its text, as measured on some hundred
    documents; `language` is that of words."""

    command: Literal["index", "build"]
    name: str
    version: str
    documents: int
    reused: int | None = None
    encoded: int | None = None
    removed: int | None = None
    skipped: int
    doubtful: int | None = None
    cut: int
    dimension: int | None
    vocabulary: str
    language: str | None
    terms: float
    added: float
    tokens: int
    tasks: list[str]
    files: int
    bytes: int

    def made(self) -> Iterator[str]:
        """Two or three lines, and those of `left_out`."""
        dense = ", no dense leg" if self.dimension is None else f" × {self.dimension}, {self.tokens:,} tokens"
        yield (
            f"{self.path}: {self.documents:,} documents{dense}, tasks {', '.join(self.tasks)}; "
            f"{self.files} files, {megabytes(self.bytes)}"
        )
        words = {"tokens": "tokens", "words": f"{self.language} words", "both": f"{self.language} words and tokens"}
        yield (
            f"sparse leg: {words[self.vocabulary]}, {self.terms:,.0f} a document, {self.added:.0%} of them added to "
            "those of its text"
        )
        if self.reused is not None and self.encoded is not None and self.removed is not None:
            yield _read(self.reused, self.encoded, self.removed)
        yield from left_out(self.skipped, self.cut)


class ProblemInfo(Part):
    """A fault of a file of a bundle."""

    file: Text
    message: Text
    expected: Text
    found: Text
    remedy: Text


class VerifySummary(Summary):
    """Of `verify`. `documents`, `files` and `bytes` are what the manifest says, null where it can't be read."""

    command: Literal["verify"]
    sound: bool
    problems: list[ProblemInfo]
    documents: int | None
    files: int | None
    bytes: int | None

    def made(self) -> Iterator[str]:
        """The problems, or that there are none."""
        for one in self.problems:
            yield f"{one.file}: {one.message}: expected {one.expected}, found {one.found}. {one.remedy}"
        if self.sound and self.bytes is not None:
            size = f"{self.documents:,} documents, {self.files} files, {megabytes(self.bytes)}"
            yield f"{self.path}: sound, {size}"
        else:
            yield f"{self.path}: not sound, {len(self.problems)} problems"


class EvaluateSummary(Summary):
    """Of `evaluate`: `metrics` by system and measure; `report` is the file, `recorded` the file of results."""

    command: Literal["evaluate"]
    report: Text
    dataset: Text
    split: str
    task: str
    queries: int
    documents: int
    metrics: dict[str, dict[str, float]]
    warnings: list[Text]
    files: int
    recorded: Text | None

    def made(self) -> Iterator[str]:
        """Where report and runs lie; the measures are printed as a table."""
        yield f"{self.path}: {Path(self.report).name} and {self.files - 1} runs of {self.queries:,} queries"
        if self.recorded is not None:
            yield f"recorded: {self.recorded}"


class TrainSummary(Summary):
    """Of `train`: `path` is the adapter's folder, `work` that of the run. A run that was `finished` has done all
    `steps`; `best` is the best development score, after `best_step`. `training_seconds` are those of all slices,
    `files` and `bytes` the adapter's."""

    command: Literal["train"]
    finished: bool
    work: Text
    pairs: int
    steps: int
    steps_done: int
    best: float | None
    best_step: int | None
    training_seconds: float
    files: int
    bytes: int

    def made(self) -> Iterator[str]:
        """One line, and one for the development score."""
        pairs = f"{self.pairs:,} pairs, " if self.pairs else ""
        spent = f"{pairs}{duration(self.training_seconds)} of training in all"
        if self.finished:
            yield f"{self.path}: adapter, {self.files} files, {megabytes(self.bytes)}"
            yield f"{self.steps:,} steps, {spent}"
        else:
            yield f"{self.work}: stopped in time, {self.steps_done:,} of {self.steps:,} steps, {spent}"
        if self.best is not None:
            yield f"best development score: {self.best:.4f}, after step {self.best_step}"


class ErrorInfo(Part):
    """An error: `kind` is its class, `status` the exit status."""

    kind: str
    message: Text
    remedy: Text
    status: int


class ErrorObject(Part):
    """The text on stdout in place of the summary."""

    error: ErrorInfo


def _read(reused: int, encoded: int, removed: int) -> str:
    return f"documents: {reused:,} reused, {encoded:,} encoded, {removed:,} removed"


def left_out(skipped: int, cut: int) -> Iterator[str]:
    """Lines that say what of a corpus was left out, where something was."""
    if skipped:
        yield f"skipped: {skipped:,} bad corpus lines"
    if cut:
        yield f"cut: {cut:,} documents are longer than the model reads; their vectors stand for the beginning alone"


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files lie in a folder and below, and their bytes."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return len(sizes), sum(sizes)


def megabytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e6:,.1f} MB"
