"""Parts of a manifest that describe a task: its token table, its head queries, and when a document matches well; and
how documents were expanded."""

from typing import Annotated, Final, Self

from lightretriever.artifacts.bundle.paths import InsidePath
from lightretriever.artifacts.tokens.table import TableDtype
from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["MAX_TEXT_CHARS", "ExpansionInfo", "HeadInfo", "ManifestPart", "MatchThresholds", "TaskInfo"]

MAX_TEXT_CHARS: Final = 10_000
"""Characters of a name, an instruction or any other text of a manifest."""

Cosine = Annotated[float, Field(ge=-1.01, le=1.01, allow_inf_nan=False)]


class ManifestPart(BaseModel):
    """Base of a manifest's parts: immutable, no unknown fields, and bounded texts, which a service shows to all."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=MAX_TEXT_CHARS)


class HeadInfo(ManifestPart):
    """How many head queries a task has, which the whole model read, and whether it gave `sparse` weights for them."""

    queries: int = Field(ge=1)
    sparse: bool


class MatchThresholds(ManifestPart):
    """Dense scores (cosines) from which a document is a `weak` and a `strong` match, and the number of unrelated
    queries whose best scores they were set by (see `artifacts.bundle.thresholds`)."""

    weak: Cosine
    strong: Cosine
    queries: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.weak > self.strong:
            raise ValueError(f"the threshold weak is {self.weak}, above strong, {self.strong}")
        return self


class TaskInfo(ManifestPart):
    """One token table (V, D): its file, the instruction its rows were computed behind, and its number type; a bundle
    without a dense leg has neither file nor type. With head queries, the model read them behind the same instruction
    (see `artifacts.tokens.head_queries`). `match` is missing where the vocabulary has too few words to set it by."""

    file: InsidePath | None = Field(default=None, exclude_if=lambda file: file is None)
    instruction: str
    dtype: TableDtype | None = Field(default=None, exclude_if=lambda dtype: dtype is None)
    head: HeadInfo | None = Field(default=None, exclude_if=lambda head: head is None)
    match: MatchThresholds | None = Field(default=None, exclude_if=lambda match: match is None)


class ExpansionInfo(ManifestPart):
    """By how many `terms` the token table of the default task expands each document in the sparse leg, and the `weight`
    of what it says beside BM25 (see `artifacts.pipeline.expansion`); a recipe's section `expand`, too."""

    terms: int = Field(default=16, ge=1)
    weight: float = Field(default=0.25, gt=0, allow_inf_nan=False)
