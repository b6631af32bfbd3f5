"""Recipes: the YAML file that says how a bundle is made, checked before anything runs.

docs/pipeline.md says what each key means.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lightretriever.artifacts.bundle.manifest import (
    MAX_TEXT_CHARS,
    ExampleQuery,
    ExpansionInfo,
    ImpactKind,
    LegWeights,
    TaskName,
)
from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.documents.bounds import MAX_DIMENSION
from lightretriever.artifacts.documents.fields import FieldKind, FieldName
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.files.reading import read_yaml
from lightretriever.artifacts.sparse.vocabulary import Language, VocabularyKind
from lightretriever.artifacts.tokens.table import MAX_QUERIES, TableDtype

BESIDE: Final = " + "
"""Stands between the paths of bi-encoders whose vectors stand side by side (`pipeline.sentence_models`)."""

MODULES_FILE: Final = "modules.json"
"""The list of modules in a folder that sentence-transformers saved."""

ModelDtype = Literal["auto", "float32", "bfloat16"]
Kind = Literal["encoder", "language-model"]
GENERAL_TABLE: Final = "general-table"

_ORGANISATION: Final = "sentence-transformers/"
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _at_home(path: Any) -> Any:
    """A path, or several joined by " + ", in which `~` is the home directory."""
    return BESIDE.join(map(os.path.expanduser, path.split(BESIDE))) if isinstance(path, str) else path


Place = Annotated[Path, BeforeValidator(_at_home)]
"""A path of a recipe."""

DataPlace = Annotated[Place, AfterValidator(lambda path, info: (info.context or Path()) / path)]
"""A path of data, below the folder that `read_recipe` is given."""

PlaceOrId = Annotated[str, BeforeValidator(_at_home)]
"""A path of a recipe, or something else that has a name, such as a model on Hugging Face."""


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused, numbers that are not finite, and texts longer than a manifest's."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_max_length=MAX_TEXT_CHARS)


class Places(Section):
    """A recipe: its work directory, and where its result goes."""

    page: ClassVar[str] = "docs/pipeline.md"
    """Where every key is described."""

    work: Place
    output: Place

    @model_validator(mode="after")
    def _work_is_elsewhere(self) -> Self:
        if Path(os.path.realpath(self.work)).is_relative_to(os.path.realpath(self.output)):
            raise ValueError(f"work is {self.work}, inside output, {self.output}, which is replaced as a whole")
        return self


AnyRecipe = TypeVar("AnyRecipe", bound=Places)


class ModelRecipe(Section):
    """Which LLM reads the documents: a Hugging Face id, a directory or a `.gguf` file, and an optional PEFT adapter."""

    path: PlaceOrId
    adapter: PlaceOrId | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    dtype: ModelDtype = "auto"
    device: str = "auto"
    name: str | None = None
    licence: str | None = None
    centre_head: bool | None = None
    trained: bool = False

    @property
    def trained_here(self) -> str | None:
        """The folder with the settings of a training: the adapter's, or that of a model trained whole."""
        whole = (Path(self.path) / "lightretriever.json").is_file()
        return self.adapter or (self.path if whole else None)


class BundleModelRecipe(ModelRecipe):
    """The model of a bundle, and what the tokens of a query weigh: count times IDF, or count alone."""

    idf: Literal["auto", "corpus"] | None = "auto"


class CorpusRecipe(Section):
    """Which documents: a BEIR corpus file or folder, and the `fields` to filter and count by
    (`artifacts.documents.fields`)."""

    path: PlaceOrId
    name: str
    licence: str | None = None
    limit: int | None = Field(default=None, ge=1)
    skip_bad: bool = False
    fields: dict[FieldName, FieldKind] = Field(default_factory=dict)

    def open(self) -> Corpus:
        """The corpus itself. Raises CorpusError when there is none at `path`."""
        return Corpus(Path(self.path), skip_bad=self.skip_bad, limit=self.limit, fields=self.fields)


class EncodeRecipe(Section):
    """How documents are encoded, and how the work is cut. None is what model, adapter and device take."""

    impacts: ImpactKind | None = None
    max_length: int = Field(default=512, ge=8)
    top_k: int | None = Field(default=128, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)
    shard_size: int = Field(default=512, ge=1)
    lowercase: bool = True


class IndexRecipe(Section):
    """How the bundle stores it. None takes what follows from the encoding, or the size."""

    vocabulary: VocabularyKind | None = None
    language: Language = "english"
    k1: float = Field(default=0.9, ge=0)
    b: float = Field(default=0.4, ge=0, le=1)
    positions: bool = False
    dense: bool = True

    dimension: int | None = Field(default=None, ge=1, le=MAX_DIMENSION)
    top_k: int | None = Field(default=None, ge=1)
    weights: LegWeights | None = None
    table_dtype: TableDtype = "float16"
    queries: Place | None = None

    @model_validator(mode="after")
    def _weights_have_their_leg(self) -> Self:
        if not self.dense and self.weights is not None and self.weights.dense:
            raise ValueError(f"weights.dense is {self.weights.dense:g}, but dense is false: there is no such leg")
        return self


class HeadRecipe(Section):
    """Which queries the whole model reads once: the `top` most frequent of a log, `queries`, with one query a line."""

    queries: Place
    top: int = Field(default=10_000, ge=1, le=MAX_QUERIES)


class TableTraining(Section):
    """How the rows of a token table are trained, and the weights of the parts of the loss (see `pipeline.fit`)."""

    epochs: int = Field(default=6, ge=0)
    batch_size: int = Field(default=512, ge=2)
    learning_rate: float = Field(default=1e-3, gt=0)
    temperature: float = Field(default=0.05, gt=0)
    cosine: float = Field(default=1.0, ge=0)
    contrast: float = Field(default=0.2, ge=0)
    kl: float = Field(default=0.1, ge=0)
    held_out: int = Field(default=500, ge=1)
    seed: Seed = 0


class DistilTableRecipe(TableTraining):
    """A token table for a model whose document vectors stay as they are, and the texts to train on."""

    vectors: Place | None = None
    queries: list[Place] = Field(default_factory=list)
    sample: int | None = Field(default=None, ge=1)
    documents: int = Field(default=500_000, ge=1)
    sentences: bool | Annotated[int, Field(ge=1)] = True


class TextsRecipe(Section):
    """Texts that a general table is fitted to, in BEIR layout: at most so many `documents`, `sentences` of these, and
    `queries` of the file or folder `path` (None: all). A folder may lack either file."""

    path: DataPlace
    name: str
    licence: str
    documents: int | None = Field(default=None, ge=0)
    sentences: int | None = Field(default=0, ge=0)
    queries: int | None = Field(default=None, ge=0)


class GeneralTableRecipe(Places):
    """A token table for a bi-encoder, fitted to texts of all kinds (`artifacts.pipeline.general`), in the folder
    `output`."""

    kind: Literal["general-table"]
    model: ModelRecipe
    licence: str
    texts: list[TextsRecipe] = Field(min_length=1)
    fit: TableTraining = TableTraining()
    table_dtype: TableDtype = "int8"


class Recipe(Places):
    """A whole bundle. `kind`, `model` and `corpus` alone make the recommended one."""

    name: str = Field(min_length=1)
    kind: Kind
    model: BundleModelRecipe
    sparse: BundleModelRecipe | None = None
    corpus: CorpusRecipe
    tasks: dict[TaskName, str] = Field(min_length=1)
    default_task: str
    tables: dict[TaskName, Place] = Field(default_factory=dict)
    encode: EncodeRecipe = EncodeRecipe()
    index: IndexRecipe = IndexRecipe()
    distil: DistilTableRecipe | None = None
    head: HeadRecipe | None = None
    expand: ExpansionInfo | Literal[False] = ExpansionInfo()
    examples: list[ExampleQuery] = Field(default_factory=list, max_length=5)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """Add what follows from other keys: names and places, and of an encoder that it is trained."""
        if not isinstance(values, dict) or not isinstance(corpus := values.get("corpus"), dict):
            return values
        if isinstance(path := corpus.get("path"), str):
            corpus = {"name": name_of(path).removesuffix(".gz").removesuffix(".jsonl"), **corpus}
        values = {"name": corpus.get("name"), "tasks": {"search": ""}, **values, "corpus": corpus}
        if isinstance(values["tasks"], dict):
            values = {"default_task": next(iter(values["tasks"]), ""), **values}
        if values.get("kind") == "encoder":
            for key, default in (("model", {"trained": True}), ("encode", {"top_k": None})):
                if isinstance(section := values.get(key, {}), dict):
                    values[key] = default | section
        return {"work": f"runs/{values['name']}/work", "output": f"runs/{values['name']}/bundle", **values}

    @property
    def encoder(self) -> bool:
        """True if the model is an encoder."""
        return self.kind == "encoder"

    def table(self, task: str) -> Path:
        """The folder in the work directory that has the token table of a task."""
        return self.work / "tables" / task

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        """What contradicts itself, what the encoder brings along, and what only a language model has, can't be set."""
        if self.default_task not in self.tasks:
            raise ValueError(f"default_task {self.default_task!r} is not one of the tasks {sorted(self.tasks)}")
        if unknown := sorted(self.tables.keys() - self.tasks.keys()):
            raise ValueError(f"tables names {unknown}, which are not among the tasks {sorted(self.tasks)}")
        path = self.model.path
        if self.encoder and (path.endswith(".gguf") or (_is_causal(path) and not is_of_sentence_transformers(path))):
            raise ValueError(f"kind is encoder, but model.path is {path}, a language model")
        if self.distil is not None and self.distil.vectors is not None and not self.encoder:
            raise ValueError(f"distil.vectors are those of an encoder, and kind is {self.kind}")
        if self.expand and "expand" in self.model_fields_set and self.index.vocabulary == "tokens":
            raise ValueError("expand adds words, and index.vocabulary is tokens")
        alone = self.encoder and self.sparse is None  # no language model reads the documents
        if self.index.positions and (self.index.vocabulary or ("words" if alone else "tokens")) == "tokens":
            raise ValueError("index.positions are those of words: set index.vocabulary to words")
        unused = {"model": {"adapter", "bos_token", "eos_token", "idf"}}
        unused |= {"encode": {"max_length", "batch_tokens"}} if alone else {}
        settings = [f"{key}.{name}" for key in unused for name in unused[key] & getattr(self, key).model_fields_set]
        if alone and self.encode.impacts not in (None, "bm25"):
            settings += ["encode.impacts"]
        if self.encoder and settings:
            raise ValueError(f"{', '.join(sorted(settings))} can't be set for an encoder")
        if self.index.top_k and self.encode.top_k and self.index.top_k > self.encode.top_k:
            raise ValueError(
                f"index.top_k is {self.index.top_k}, but encode.top_k keeps only {self.encode.top_k} terms"
            )
        return self


def is_of_sentence_transformers(path: str) -> bool:
    """True if a model is a folder that sentence-transformers saved, or one of that project's own on Hugging Face, or
    several of these, joined by " + "."""
    paths = [part.strip() for part in _at_home(path).split(BESIDE)]
    return all(part.startswith(_ORGANISATION) or (Path(part) / MODULES_FILE).is_file() for part in paths)


def name_of(path: str) -> str:
    """The name of a file or folder, of "." and ".." that of the folder which they stand for."""
    folder = Path(_at_home(path))
    return folder.name if folder.name not in ("", "..") else folder.resolve().name


def _is_causal(path: str) -> bool:
    """True if the configuration in a folder names a language model."""
    try:
        content = json.loads((Path(_at_home(path)) / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    names = content.get("architectures") if isinstance(content, dict) else None
    return isinstance(names, list) and any(isinstance(name, str) and name.endswith("ForCausalLM") for name in names)


def recipe_kind(path: Path) -> type["Recipe | GeneralTableRecipe"]:
    """The kind of recipe that a file is: of a general table where it says so. Raises RecipeError."""
    return GeneralTableRecipe if _content(path, Recipe).get("kind") == GENERAL_TABLE else Recipe


def read_recipe(
    path: Path, kind: type[AnyRecipe], overrides: dict[str, Any] | None = None, data: Path | None = None
) -> AnyRecipe:
    """Read a recipe. `overrides` maps dotted keys (`model.path`) to values that replace the file's; None is ignored.
    Relative paths of training data are below the folder `data`. A section with nothing in it has its defaults.

    Raises RecipeError naming the file, the key, the value and what is allowed.
    """
    content = _content(path, kind)
    for key, value in (overrides or {}).items():
        if value is not None:
            _set(content, key, str(value) if isinstance(value, Path) else value)
    try:
        return kind.model_validate(content, context=data)
    except ValidationError as error:
        problems = "; ".join(map(_named, error.errors()))
        raise RecipeError(f"{path}: {problems}.", remedy=f"See {kind.page} for every key.") from error


def _content(path: Path, kind: type[Places]) -> dict[str, Any]:
    """The mapping in a YAML file, which reads a section with nothing in it as null. Raises RecipeError."""
    keys = f"See {kind.page} for every key."
    try:
        content = read_yaml(Path(path))
    except OSError as error:
        raise RecipeError(f"{path}: the recipe can't be read: {error.strerror}.", remedy="Name a YAML file.") from error
    except ValueError as error:
        raise RecipeError(f"{path}: not a YAML file: {error}.", remedy=keys) from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: expected a mapping of settings, found {type(content).__name__}.", remedy=keys)
    return {str(key): {} if value is None else value for key, value in content.items()}


def _named(error: Mapping[str, Any]) -> str:
    """An error of pydantic with its key and, unless it is of a whole section, the value."""
    key, message = ".".join(map(str, error["loc"])) or "recipe", error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{key}: there is no such key"
    return f"{key}: {message}" + ("" if isinstance(error["input"], dict) else f" (found {error['input']!r:.80})")


def _set(content: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = content.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # validation names the section
        content = inner
    content[last] = value
