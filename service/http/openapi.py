"""The routes, as they are declared, and their OpenAPI description."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import getdoc
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightretriever.artifacts.bundle.software import package_version
from lightretriever.service import errors, schemas
from lightretriever.service.errors import InvalidBodyError
from lightretriever.service.http.json import JSON, PROBLEM_JSON

# Errors of groups of routes.
KEY: Final = (errors.UnauthorizedError, errors.ForbiddenError)
_WORK: Final = (*KEY, errors.OverloadedError, errors.NotReadyError, errors.DeadlineError)
QUERY: Final = (*_WORK, errors.InvalidRequestError, errors.UnsearchableError)
SEARCH: Final = (*QUERY, errors.DocumentNotFoundError, errors.SearchFailedError)
READ: Final = (*_WORK, errors.DocumentNotFoundError, errors.SearchFailedError)
WRITE: Final = (
    *_WORK,
    errors.NotFoundError,
    errors.ImmutableError,
    errors.VersionConflictError,
    errors.InvalidRequestError,
    errors.WriteFailedError,
    errors.NoRoomError,
)

Endpoint = Callable[[Request], Awaitable[Response]]
_MODELS: dict[type[BaseModel], JsonSchemaMode] = {schemas.Problem: "serialization"}
_DESCRIPTION: Final = """Hybrid search without a model in the query path: dense (Faiss) and sparse (Lucene), fused.
Errors are `application/problem+json` (RFC 9457); `kind` is an error's stable name, and `errors` has the fields."""


class ApiRoute(Route):
    """A route of one method, and the OpenAPI `operation` that describes it."""

    def __init__(self, method: str, path: str, endpoint: Endpoint, operation: dict[str, Any]) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method, self.operation = method, operation | {"description": getdoc(endpoint)}


def route(
    method: str,
    path: str,
    summary: str,
    *,
    answer: type[BaseModel] | str,
    request: type[BaseModel] | None = None,
    media: str = JSON,
    errors: Sequence[type[errors.ServiceError]] = (),
    parameters: Sequence[Mapping[str, Any]] = (),
) -> Callable[[Endpoint], ApiRoute]:
    """Make a route of the function that answers it, whose docstring describes it. `answer` is a model, or else a media
    type, and `media` that of the `request`."""
    content = {answer: {"schema": {"type": "string"}}} if isinstance(answer, str) else {JSON: _body(answer)}
    operation: dict[str, Any] = {"summary": summary, "parameters": list(parameters)}
    if request is not None:
        errors = (*errors, InvalidBodyError)
        operation["requestBody"] = {"required": True, "content": {media: _body(request, "validation")}}
    operation["responses"] = {"200": {"description": "The answer.", "content": content}, **_problems(errors)}
    return lambda endpoint: ApiRoute(method, path, endpoint, operation)


def parameter(name: str, where: str, text: str, **schema: Any) -> dict[str, Any]:
    """Describe a parameter that stands in the path, the query or a header."""
    facts = {"name": name, "in": where, "required": where == "path", "description": text}
    return {**facts, "schema": {"type": "string", **schema}}


def description(routes: Iterable[ApiRoute], *, keys: bool) -> dict[str, Any]:
    """Describe the routes, which need API keys if there are `keys`, the models, and the kinds of errors."""
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        secured = keys and str(errors.UnauthorizedError.statuses[0]) in one.operation["responses"]
        operation = one.operation | ({"security": [{"key": []}]} if secured else {})
        paths.setdefault(one.path.replace(":any", ""), {})[one.method.lower()] = operation
    _, definitions = models_json_schema(list(_MODELS.items()), ref_template="#/components/schemas/{model}")
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "LightRetriever Search",
            "version": package_version("lightretriever-search") or "not installed",
            "description": _DESCRIPTION,
        },
        # Beside this description: below a collection, and behind a proxy that takes a prefix off.
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {"schemas": definitions["$defs"]},
        "x-error-kinds": {
            kind: {"statuses": error.statuses, "title": error.title, "description": error.__doc__}
            for kind, error in errors.KINDS.items()
        },
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _body(model: type[BaseModel], mode: JsonSchemaMode = "serialization") -> dict[str, Any]:
    _MODELS[model] = mode
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}


def _problems(kinds: Sequence[type[errors.ServiceError]]) -> dict[str, dict[str, Any]]:
    texts: dict[int, list[str]] = {}
    possible: list[type[errors.ServiceError]] = [*kinds, errors.InternalError]
    for kind in possible:
        for status in kind.statuses:
            texts.setdefault(status, []).append(f"`{kind.kind}`: {kind.title}.")
    content = {PROBLEM_JSON: _body(schemas.Problem)}
    return {str(status): {"description": " ".join(text), "content": content} for status, text in texts.items()}
