"""Models of query vectors in the form of OpenAI's API."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from lightretriever.service.schemas.base import Model

__all__ = [
    "Embedding",
    "EmbeddingsModel",
    "EmbeddingsModels",
    "EmbeddingsRequest",
    "EmbeddingsResponse",
    "EmbeddingsUsage",
]

_Text = Annotated[str, Field(min_length=1, pattern=r"\S")]  # not white space alone
_Texts = Annotated[list[_Text], Field(min_length=1, max_length=2048)]


def _as_texts(value: object) -> object:
    """Return one text as a list of one. ValueError for token ids, which OpenAI's API also takes."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise ValueError("send texts, not token ids: the bundle has a tokenizer of its own")
    return value


class EmbeddingsRequest(Model):
    """Texts to encode as queries, in the form of OpenAI's `POST /v1/embeddings`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "default", "input": ["play music"]}]})

    input: Annotated[_Texts, BeforeValidator(_as_texts, json_schema_input_type=_Text | _Texts)] = Field(
        description="A text, or a list of texts.", examples=["play music"]
    )
    model: str = Field(
        description="A task, see `tasks` in `/info`. Any other name, such as `default`: the default task.",
        examples=["default"],
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        default="float", description="Numbers, as by null, or base64 of float32 in little-endian order."
    )
    dimensions: int | None = Field(default=None, ge=1, description="If given, it must be the bundle's dimension.")
    user: str | None = Field(default=None, description="Ignored.")


class Embedding(Model):
    """The query vector of a text."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(description="The text's position in the request, from 0.")
    embedding: list[float] | str = Field(description="Query vector of length 1, as `encoding_format` says.")


class EmbeddingsUsage(Model):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(Model):
    """Query vectors in the form of OpenAI's `POST /v1/embeddings`."""

    object: Literal["list"] = "list"
    data: list[Embedding] = Field(description="In the order of the texts.")
    model: str = Field(description="As in the request.")
    usage: EmbeddingsUsage


class EmbeddingsModel(Model):
    """A task of the bundle, as a model in the form of OpenAI's API."""

    id: str = Field(description="Name of the task.")
    object: Literal["model"] = "model"
    created: int = Field(description="When the bundle was made, in seconds since 1970.")
    owned_by: str = Field(description="Name of the bundle.")


class EmbeddingsModels(Model):
    """What `model` may name in `POST /v1/embeddings`, in the form of OpenAI's `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[EmbeddingsModel] = Field(description="The default task first.")
