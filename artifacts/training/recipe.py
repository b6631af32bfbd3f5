"""Training recipes: the YAML file that says how an adapter is trained, checked before anything runs."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lightretriever.artifacts.pipeline.recipe import (
    Attention,
    ModelRecipe,
    Place,
    PlaceOrId,
    Places,
    Pooling,
    Section,
    Seed,
    TableTraining,
    name_of,
)

__all__ = [
    "ContrastiveStage",
    "DataRecipe",
    "DecontaminateRecipe",
    "DevRecipe",
    "EncoderRecipe",
    "FlopsRecipe",
    "LoraRecipe",
    "NegativesRecipe",
    "RegressionStage",
    "SetRecipe",
    "Stage",
    "StageBase",
    "TokenRegression",
    "TrainRecipe",
]


class LoraRecipe(Section):
    """The adapter: rank, scale α, dropout, and which linear layers get one; `layers`: only the model's last so many.

    With few `layers` a step is cheaper, as no gradient goes below them; `targets` then has to name the linear layers.
    """

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    targets: str | list[str] = "all-linear"
    layers: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _targets_by_name(self) -> Self:
        if self.layers is not None and isinstance(self.targets, str):
            raise ValueError(f"layers is {self.layers}, so targets has to be a list of names, found {self.targets!r}")
        return self


class SetRecipe(Section):
    """One training set in BEIR layout. `weight` is its share of the batches (None: its number of pairs)."""

    path: Place
    name: str = Field(default="", description="the folder's name where empty")
    split: str = "train"
    instruction: str
    weight: float | None = Field(default=None, gt=0)
    limit: int | None = Field(default=None, ge=1)
    drop_title: bool = False
    licence: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, object]) -> dict[str, object]:
        if isinstance(values, dict) and not values.get("name") and values.get("path"):
            return {**values, "name": name_of(str(values["path"]))}
        return values


class DecontaminateRecipe(Section):
    """Leave out training queries whose content is that of any query of the sets `against`."""

    against: list[Place] = Field(min_length=1)


class NegativesRecipe(Section):
    """Hard negatives: documents that BM25 puts high for the query.

    Of the first `depth` documents those scoring above `margin` times the positive's score are left out, as they may
    well be relevant; of the rest the best `count` are kept.
    """

    depth: int = Field(default=50, ge=1)
    count: int = Field(default=7, ge=1)
    margin: float = Field(default=0.95, gt=0)


class DataRecipe(Section):
    """The mixture and how it is cleaned."""

    sets: list[SetRecipe] = Field(min_length=1)
    decontaminate: DecontaminateRecipe | None = None
    negatives: NegativesRecipe | None = None
    max_query_length: int = Field(default=64, ge=1)
    max_document_length: int = Field(default=512, ge=8)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [one.name for one in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"sets need different names, found {names}")
        return self


class FlopsRecipe(Section):
    """FLOPS regulariser of the sparse vectors. `warmup` steps of quadratic growth (None: a third of the stage).

    With `idf`, scores use IDF_t · w_t and the regulariser w_t alone, so that rare terms are not punished.
    """

    weight: float = Field(default=1e-3, ge=0)
    warmup: int | None = Field(default=None, ge=1)
    idf: bool = True


class StageBase(Section):
    """`decay` is the share of the steps at whose end the learning rate falls to 0; None: all after the warm-up.

    A step adds up the gradients of `accumulate` batches, each with a loss of its own.
    """

    steps: int = Field(ge=1)
    batch_size: int = Field(default=128, ge=2)
    accumulate: int = Field(default=1, ge=1)
    chunk_tokens: int | None = Field(default=None, ge=8)
    learning_rate: float = Field(default=2e-4, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    decay: float | None = Field(default=None, gt=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)


class ContrastiveStage(StageBase):
    """Dense and sparse contrastive training together."""

    kind: Literal["contrastive"]
    negatives: int = Field(default=7, ge=0)
    dense_temperature: float = Field(default=0.02, gt=0)
    sparse_temperature: float = Field(default=1.0, gt=0)
    matryoshka: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    flops: FlopsRecipe = FlopsRecipe()
    full_kl: float = Field(default=0.0, ge=0)


class TokenRegression(Section):
    """Token vectors behind an instruction follow rows that are fitted to the teacher: `count` tokens a step.

    The rows are fitted as `fit` says, on at most `queries` queries of the sets and on `blocks` blocks of texts
    (see `artifacts.training.token_rows`). Each step has one instruction: that of a set, or one of `instructions`.
    """

    count: int = Field(default=96, ge=1)
    weight: float = Field(default=1.0, gt=0)
    queries: int = Field(default=50_000, ge=1)
    blocks: int = Field(default=4, ge=1)
    instructions: list[str] = Field(default_factory=list)
    fit: TableTraining = TableTraining()


class EncoderRecipe(Section):
    """The bi-encoder that stages follow, a Hugging Face id or a directory, or several of them, joined by " + ".

    Texts are cut to `length` tokens, a share `long_share` of them to `long_length`. `held_out` texts of each set are
    trained on in none. With `blocks`, so many blocks of 2,048 texts are drawn and kept in memory, and training goes
    through them again and again; without, it never comes to an end of new ones.
    """

    path: PlaceOrId
    length: int = Field(default=72, ge=8)
    long_length: int = Field(default=256, ge=8)
    long_share: float = Field(default=0.1, ge=0, le=1)
    held_out: int = Field(default=64, ge=1)
    blocks: int | None = Field(default=None, ge=1)


class RegressionStage(StageBase):
    """Document vectors follow the teacher's, with no labels; see `artifacts.training.regression`.

    `every` so many steps, the vectors of the texts that are held out are compared with the teacher's.
    """

    kind: Literal["regression"]
    similarity: float = Field(default=0.1, ge=0)
    temperature: float = Field(default=0.05, gt=0)
    tokens: TokenRegression | None = None
    every: int = Field(default=100, ge=1)


Stage = Annotated[ContrastiveStage | RegressionStage, Field(discriminator="kind")]


class DevRecipe(Section):
    """The development set: every `every` steps so many queries are ranked against so many documents."""

    path: Place
    split: str = "dev"
    instruction: str
    every: int = Field(default=100, ge=1)
    queries: int = Field(default=200, ge=1)
    documents: int = Field(default=2000, ge=1)


class TrainRecipe(Places):
    """A whole training run. The adapter is written to `output`, everything else to `work`.

    With `idf_rows` a dense query is mean_i IDF(t_i) · e(t_i): the table's rows are multiplied by their token's IDF.
    `layers` keeps only the model's first so many layers; `pooling` says what dense vectors are made from, the state at
    the end token, or the mean of a text's states. `attention` says whether a position sees what stands before it, as
    the model was made, or all of its text. `teacher` is for the stages of kind regression. `precision` is that of the
    arithmetic, "auto" that of the model's weights. With `shard` each of several processes holds a part of all weights.
    `trackers` are names that accelerate knows.
    """

    page: ClassVar[str] = "docs/training.md"

    name: str = Field(min_length=1)
    model: ModelRecipe
    lora: LoraRecipe = LoraRecipe()
    seed: Seed = 0
    lowercase: bool = True
    idf_rows: bool = False
    layers: int | None = Field(default=None, ge=1)
    pooling: Pooling = "end"
    attention: Attention = "causal"
    teacher: EncoderRecipe | None = None
    licence: str | None = None
    data: DataRecipe
    stages: list[Stage] = Field(min_length=1)
    dev: DevRecipe | None = None
    precision: Literal["auto", "bfloat16"] = "auto"
    shard: bool = False
    trackers: list[str] = Field(default_factory=list)
    checkpoint_every: int = Field(default=50, ge=1)

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        if self.teacher is None and self.has(RegressionStage):
            raise ValueError("a stage of kind regression needs a teacher")
        sparse = [stage for stage in self.stages if isinstance(stage, ContrastiveStage)]
        if len({stage.flops.idf for stage in sparse}) > 1:
            raise ValueError("flops.idf is true in one stage and false in another; the adapter can't serve both")
        mined = self.data.negatives.count if self.data.negatives else 0
        most = max((stage.negatives for stage in sparse), default=0)
        if most > mined:
            raise ValueError(f"a stage wants {most} negatives per query, data.negatives gives {mined}")
        return self

    def has(self, kind: type[StageBase]) -> bool:
        """Whether a stage is of this kind."""
        return any(isinstance(stage, kind) for stage in self.stages)

    @property
    def needs_pairs(self) -> bool:
        """Whether a stage trains on queries with their documents, or all on texts alone."""
        return self.has(ContrastiveStage)

    def below(self, folder: Path) -> Self:
        """The recipe with the relative paths of all sets taken from `folder`."""
        data = self.data
        sets = [one.model_copy(update={"path": folder / one.path}) for one in data.sets]
        changes: dict[str, object] = {"sets": sets}
        if data.decontaminate is not None:
            against = [folder / path for path in data.decontaminate.against]
            changes["decontaminate"] = data.decontaminate.model_copy(update={"against": against})
        dev = None if self.dev is None else self.dev.model_copy(update={"path": folder / self.dev.path})
        return self.model_copy(update={"data": data.model_copy(update=changes), "dev": dev})
