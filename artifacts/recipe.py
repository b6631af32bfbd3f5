"""Recipes: the YAML file that says how a bundle is made, checked before anything runs."""

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from artifacts.corpus import Corpus
from artifacts.errors import RecipeError
from artifacts.manifest import TaskName
from artifacts.table import TableDtype

__all__ = [
    "CorpusRecipe",
    "EncodeRecipe",
    "IndexRecipe",
    "ModelRecipe",
    "Recipe",
    "Section",
    "load_recipe",
    "read_recipe",
]

AnyRecipe = TypeVar("AnyRecipe", bound=BaseModel)


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelRecipe(Section):
    """Which LLM reads the documents: a Hugging Face id, a directory or a `.gguf` file, and an optional PEFT adapter."""

    path: str
    adapter: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    name: str | None = None
    licence: str | None = None
    trained: bool = False


class CorpusRecipe(Section):
    """Which documents: a BEIR corpus file or folder."""

    path: str
    name: str
    licence: str | None = None
    limit: int | None = Field(default=None, ge=1)
    skip_bad: bool = False

    def open(self) -> Corpus:
        """The corpus itself. Raises CorpusError when there is none at `path`."""
        return Corpus(Path(self.path), skip_bad=self.skip_bad, limit=self.limit)


class EncodeRecipe(Section):
    """How documents are encoded (see `artifacts.pipeline.encode.EncodeSettings`)."""

    max_length: int = Field(default=512, ge=8)
    top_k: int | None = Field(default=128, ge=1)
    batch_tokens: int | None = Field(default=None, ge=8)
    shard_size: int = Field(default=512, ge=1)
    lowercase: bool = True


class IndexRecipe(Section):
    """How the bundle stores it: dense dimension D (None: all of H), Faiss factory (None: by size), table dtype."""

    dimension: int | None = Field(default=None, ge=1)
    factory: str | None = None
    table_dtype: TableDtype = "float16"


class Recipe(Section):
    """A whole bundle: model, corpus, one instruction per task, and where work and result go."""

    name: str = Field(min_length=1)
    model: ModelRecipe
    corpus: CorpusRecipe
    tasks: dict[TaskName, str] = Field(min_length=1)
    default_task: str
    encode: EncodeRecipe = EncodeRecipe()
    index: IndexRecipe = IndexRecipe()
    work: Path
    output: Path

    @model_validator(mode="after")
    def _known_default(self) -> Self:
        if self.default_task not in self.tasks:
            raise ValueError(f"default_task {self.default_task!r} is not one of the tasks {sorted(self.tasks)}")
        return self


def load_recipe(path: Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a bundle's recipe; see `read_recipe`. Raises RecipeError."""
    return read_recipe(path, Recipe, overrides)


def read_recipe(path: Path, kind: type[AnyRecipe], overrides: dict[str, Any] | None = None) -> AnyRecipe:
    """Read a recipe. `overrides` maps dotted keys (`model.path`) to values that replace the file's; None is ignored.

    Raises RecipeError naming the file, the key, the value and what is allowed.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: the recipe can't be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not a YAML file: {error}.") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: expected a mapping of settings, found {type(content).__name__}.")
    for key, value in (overrides or {}).items():
        if value is not None:
            _set(content, key, value)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'recipe'}: {item['msg']} (found {item['input']!r:.80})"
            for item in error.errors()
        )
        raise RecipeError(f"{path}: {problems}.", remedy="See docs/pipeline.md for every key.") from error


def _set(content: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = content.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # validation names the section
        content = inner
    content[last] = value
