"""Training recipes: the YAML file that says how an adapter is trained, checked before anything runs.

docs/training.md and docs/training-data.md say what each key means.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lightretriever.artifacts.pipeline.recipe import (
    DataPlace,
    ModelRecipe,
    Place,
    PlaceOrId,
    Places,
    Section,
    Seed,
    name_of,
)


class LoraRecipe(Section):
    """The adapter. With few `layers`, the last ones, a step is cheaper, as no gradient goes below them."""

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    targets: str | list[str] = "all-linear"
    layers: int | None = Field(default=None, ge=1)


class SetRecipe(Section):
    """One training set: a folder in BEIR layout, or a file of JSON lines as the papers' authors publish them. `weight`
    is its share of the batches (None: its number of pairs). Of several instructions, one is drawn for each query of
    each batch. `negatives` is a file of hard negatives."""

    path: DataPlace
    name: str = Field(default="", pattern=r"^[^/]*$", description="the folder's or file's name where empty")
    split: str = "train"
    instruction: str | Annotated[list[str], Field(min_length=1)]
    negatives: DataPlace | None = None
    weight: float | None = Field(default=None, gt=0)
    limit: int | None = Field(default=None, ge=1)
    drop_title: bool = False
    licence: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, object]) -> dict[str, object]:
        if isinstance(values, dict) and not values.get("name") and values.get("path"):
            name = name_of(str(values["path"])).removesuffix(".gz").removesuffix(".jsonl")
            return {**values, "name": name}
        return values

    @property
    def instructions(self) -> tuple[str, ...]:
        """The instructions before its queries."""
        return (self.instruction,) if isinstance(self.instruction, str) else tuple(self.instruction)

    @property
    def is_lines(self) -> bool:
        """True if `path` names a file of JSON lines, which has hard negatives of its own."""
        return self.path.name.endswith((".jsonl", ".jsonl.gz"))


class DecontaminateRecipe(Section):
    """Leave out training queries whose content is that of any query of the sets `against`."""

    against: list[DataPlace] = Field(min_length=1)


class NegativesRecipe(Section):
    """Hard negatives by BM25, or by a stage's own model (`stages[].mine`), and the consistency filter, `top`."""

    depth: int = Field(default=50, ge=1)
    count: int = Field(default=7, ge=1)
    margin: float = Field(default=0.95, gt=0)
    top: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _top_is_read(self) -> Self:
        if self.top is not None and self.top > self.depth:
            raise ValueError(f"top is {self.top}, but only {self.depth} documents are read (depth)")
        return self


class DataRecipe(Section):
    """The mixture and how it is cleaned."""

    sets: list[SetRecipe] = Field(min_length=1)
    decontaminate: DecontaminateRecipe | None = None
    negatives: NegativesRecipe | None = None
    max_query_length: int = Field(default=64, ge=1)
    max_document_length: int = Field(default=512, ge=8)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [dataset.name for dataset in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"sets need different names, found {names}")
        return self


class FlopsRecipe(Section):
    """FLOPS regulariser of the sparse vectors. `warmup` steps of quadratic growth (None: a third of the stage). With
    `idf`, scores use IDF_t · w_t and the regulariser w_t alone, so that rare terms are not punished."""

    weight: float = Field(default=1e-3, ge=0)
    warmup: int | None = Field(default=None, ge=1)
    idf: bool = True


class StageBase(Section):
    """What all stages have. A step adds up the gradients of `accumulate` batches, each with a loss of its own."""

    steps: int = Field(ge=1)
    batch_size: int = Field(default=128, ge=2)
    accumulate: int = Field(default=1, ge=1)
    chunk_tokens: int | None = Field(default=None, ge=8)
    learning_rate: float = Field(default=2e-4, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    decay: float | None = Field(default=None, gt=0, le=1)
    schedule: Literal["linear", "cosine"] = "linear"
    minimum_rate: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)


class TeacherRecipe(Section):
    """A teacher of distillation: a `leg` of the bundle of a set's documents, a cross-encoder, or scores in a file."""

    bundle: Place | None = None
    leg: Literal["dense", "sparse", "hybrid"] = "hybrid"
    cross_encoder: PlaceOrId | None = None
    scores: Place | None = None
    weight: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(part is not None for part in (self.bundle, self.cross_encoder, self.scores)) != 1:
            raise ValueError("a teacher is one of bundle, cross_encoder and scores")
        return self


class DistillationRecipe(Section):
    """The `legs` follow an ensemble of teachers over each query's own candidates, by KL times `weight`. `scale` is S of
    the inference-free paper's equation 8: 10 in pre-training, 30 in fine-tuning."""

    teachers: list[TeacherRecipe] = Field(min_length=1)
    scale: float = Field(default=30.0, gt=0)
    weight: float = Field(default=1.0, gt=0)
    legs: list[Literal["dense", "sparse"]] = Field(default=["sparse"], min_length=1)


class ContrastiveStage(StageBase):
    """Dense and sparse training together: contrastive, by distillation, or by both."""

    kind: Literal["contrastive"]
    contrastive: float = Field(default=1.0, ge=0)
    mine: Literal["dense", "sparse"] | None = None
    distillation: DistillationRecipe | None = None
    negatives: int = Field(default=7, ge=0)
    dense_temperature: float = Field(default=0.02, gt=0)
    sparse_temperature: float = Field(default=1.0, gt=0)
    matryoshka: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    flops: FlopsRecipe = FlopsRecipe()
    full_kl: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if not (self.contrastive or self.distillation or self.full_kl):
            raise ValueError("contrastive is 0, and neither distillation nor full_kl is set: nothing would be learned")
        if self.distillation is not None and self.negatives == 0:
            raise ValueError("negatives is 0, but distillation compares a query's document with its negatives")
        return self


class LikelihoodStage(StageBase):
    """Query likelihood: the model writes a document's query from the state at `<eos>` alone (LLM-QL paper, eq. 8)."""

    kind: Literal["query_likelihood"]
    corruption: float = Field(default=0.6, ge=0, lt=1)
    block: bool = True
    before: str = "Instruct: Given a retrieved passage, summarize the passage. Passage: "
    after: str = " Summarization: "


Stage = Annotated[ContrastiveStage | LikelihoodStage, Field(discriminator="kind")]


class DevRecipe(Section):
    """The development set: every `every` steps so many queries are ranked against so many documents."""

    path: DataPlace
    split: str = "dev"
    instruction: str
    every: int = Field(default=100, ge=1)
    queries: int = Field(default=200, ge=1)
    documents: int = Field(default=2000, ge=1)


class TrainRecipe(Places):
    """A whole training run. An adapter, or with `lora: false` a whole model, is written to `output`."""

    page: ClassVar[str] = "docs/training.md"

    name: str = Field(min_length=1)
    model: ModelRecipe
    lora: LoraRecipe | Literal[False] = LoraRecipe()
    seed: Seed = 0
    lowercase: bool = True
    idf_rows: bool = False
    licence: str | None = None
    data: DataRecipe
    stages: list[Stage] = Field(min_length=1)
    dev: DevRecipe | None = None
    gradient_checkpointing: bool = False
    checkpoint_every: int = Field(default=50, ge=1)

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        sparse = [stage for stage in self.stages if isinstance(stage, ContrastiveStage)]
        if len({stage.flops.idf for stage in sparse}) > 1:
            raise ValueError("flops.idf is true in one stage and false in another; the adapter can't serve both")
        mined, wanted = self.data.negatives.count if self.data.negatives else 0, self.wanted_negatives
        if wanted > mined and not all(dataset.is_lines or dataset.negatives for dataset in self.data.sets):
            raise ValueError(f"a stage wants {wanted} negatives per query, data.negatives gives {mined}")
        if self.data.negatives is None and any(stage.mine for stage in sparse):
            raise ValueError("a stage mines negatives, but data.negatives is not set")
        if self.model.centre_head and not self.lora:
            raise ValueError("lora is false, so model.centre_head can't be true")
        return self

    @property
    def wanted_negatives(self) -> int:
        """The most hard negatives of a query that a stage has."""
        return max((stage.negatives for stage in self.stages if isinstance(stage, ContrastiveStage)), default=0)
