"""Reading requests and writing answers: JSON in, JSON or a problem out."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import orjson
from fastapi import Request, Response
from lightretriever.service.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    InvalidJsonError,
    InvalidRequestError,
    MediaTypeError,
    ServiceError,
)
from lightretriever.service.http.problems import field_errors, problem
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Scope

__all__ = ["JSON", "PROBLEM_JSON", "header", "json_response", "model_of", "problem_response", "read_model"]

JSON: Final = "application/json"
PROBLEM_JSON: Final = "application/problem+json"

M = TypeVar("M", bound=BaseModel)


def header(scope: Scope, name: bytes, default: str = "") -> str:
    """Give the value of a request's first header of this name, in lower case: cheaper than from Starlette's mapping."""
    for known, value in scope["headers"]:
        if known == name:
            return str(value, "latin-1")
    return default


async def read_model(request: Request, model: type[M], *, max_body_bytes: int, deadline_ms: float) -> M:
    """Read the body as JSON into a model.

    MediaTypeError unless it is declared as JSON, BodyTooLargeError over the limit (announced or streamed),
    BodyTimeoutError if it is not there within the deadline, counted from now,
    InvalidJsonError for what is no JSON (bad UTF-8, NaN, lone surrogates and too deep nesting among them),
    InvalidRequestError where it does not fit the model.
    """
    _check_media_type(request)
    try:
        async with asyncio.timeout(deadline_ms / 1e3):
            body = await _read_body(request, max_body_bytes)
    except TimeoutError as error:
        raise BodyTimeoutError(f"The body was not there within {deadline_ms:g} ms. Send it faster.") from error
    return model_of(body, model)


def model_of(body: bytes, model: type[M]) -> M:
    """Read JSON into a model. InvalidJsonError, InvalidRequestError."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"The body is not JSON: {error}.") from error
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InvalidRequestError.of(*field_errors(error), count=error.error_count()) from error


def json_response(answer: BaseModel | Mapping[str, Any]) -> Response:
    """Give as JSON a model, or a mapping that may have models in it."""
    if isinstance(answer, BaseModel):
        return Response(answer.model_dump_json(), media_type=JSON)
    return Response(orjson.dumps(answer, default=BaseModel.model_dump), media_type=JSON)


def problem_response(
    error: ServiceError, *, instance: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Give an error as application/problem+json."""
    body = orjson.dumps(problem(error, instance=instance, request_id=request_id))
    return Response(body, error.status, {**error.headers, **(headers or {})}, media_type=PROBLEM_JSON)


def _check_media_type(request: Request) -> None:
    declared = header(request.scope, b"content-type")
    if declared.partition(";")[0].strip().lower() != JSON:
        shown = repr(declared[:100]) if declared else "missing"
        raise MediaTypeError(f"The header Content-Type is {shown}; send the body as application/json.")
    encoding = header(request.scope, b"content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeError(f"The header Content-Encoding is {encoding[:100]!r}; send the body without encoding.")


async def _read_body(request: Request, limit: int) -> bytes:
    announced = header(request.scope, b"content-length")
    # The server has refused anything but digits; a body longer than announced never gets here.
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return bytes(body)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is over the limit of {limit} bytes. Send fewer or shorter searches at once.")
