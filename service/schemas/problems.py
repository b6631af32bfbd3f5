"""Models of errors."""

from pydantic import Field

from lightretriever.service.schemas.base import Model, optional

__all__ = ["FieldProblem", "OpenAIError", "Problem"]


class FieldProblem(Model):
    """An error in one field."""

    field: str = Field(description="Path of the field, as in `fusion.weights.dense`.")
    message: str
    value: str | int | float | bool | None = Field(default=None, description="The field's value, shortened.")


class OpenAIError(Model):
    """An error as clients of OpenAI's API read it."""

    message: str = Field(description="`detail` of the problem.")
    type: str = Field(description="`kind` of the problem.")


class Problem(Model):
    """An error as in RFC 9457."""

    type: str = Field(description="Address that explains this kind of error.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request, and the remedy.")
    instance: str = Field(description="Path of the request.")
    kind: str = Field(description="Short name of the kind of error, for programs.")
    request_id: str = Field(description="Also in the header X-Request-ID and in the log.")
    errors: list[FieldProblem] = Field(description="The fields at fault, if any.")
    error: OpenAIError | None = optional("Present below `/v1`.")
