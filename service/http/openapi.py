"""The OpenAPI description. It adds the bodies, which FastAPI can't see because the routes handle JSON themselves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.routing import BaseRoute

from lightretriever.artifacts.reports import package_version
from lightretriever.service import errors, schemas
from lightretriever.service.errors import InvalidBodyError
from lightretriever.service.http.json import JSON, PROBLEM_JSON
from lightretriever.service.settings import Settings

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

E = TypeVar("E", bound=Callable[..., Any])
_MODELS: dict[type[BaseModel], JsonSchemaMode] = {schemas.Problem: "serialization"}
_DESCRIPTION: Final = """Hybrid search without a model in the query path: dense (Faiss) and sparse (Lucene), fused.
Errors are `application/problem+json` (RFC 9457); `kind` is an error's stable name, and `errors` has the fields."""


def route(
    router: APIRouter,
    method: str,
    path: str,
    summary: str,
    *,
    answer: type[BaseModel] | str,
    request: type[BaseModel] | None = None,
    media: str = JSON,
    errors: Sequence[type[errors.ServiceError]] = (),
    parameters: Sequence[Mapping[str, Any]] = (),
) -> Callable[[E], E]:
    """Decorate the function that answers a route. `answer` is a model, or else a media type, and `media` that of the
    `request`."""
    content = {answer: {"schema": {"type": "string"}}} if isinstance(answer, str) else {JSON: _body(answer)}
    extra: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
    if request is not None:
        errors = (*errors, InvalidBodyError)
        extra["requestBody"] = {"required": True, "content": {media: _body(request, "validation")}}
    responses = _problems(errors) | {200: {"description": "The answer.", "content": content}}
    return router.api_route(path, methods=[method], summary=summary, responses=responses, openapi_extra=extra)


def parameter(name: str, where: str, text: str, **schema: Any) -> dict[str, Any]:
    """Describe a parameter that stands in the path, the query or a header."""
    facts = {"name": name, "in": where, "required": where == "path", "description": text}
    return {**facts, "schema": {"type": "string", **schema}}


def description(routes: Sequence[BaseRoute], settings: Settings) -> dict[str, Any]:
    """Describe the routes, the models, the kinds of errors, and the limits that the settings set."""
    version = package_version("lightretriever-search") or "not installed"
    document = get_openapi(title="LightRetriever Search", version=version, description=_DESCRIPTION, routes=routes)
    # Beside this description: below a collection, and behind a proxy that takes a prefix off.
    document["servers"] = [{"url": "."}]
    _, definitions = models_json_schema(list(_MODELS.items()), ref_template="#/components/schemas/{model}")
    document["components"] = {"schemas": definitions["$defs"]}
    search = definitions["$defs"]["SearchRequest"]["properties"]
    search["query"]["maxLength"] = settings.max_query_chars
    search["k"]["maximum"] = search["candidates"]["anyOf"][0]["maximum"] = settings.max_candidates
    search["deadline_ms"]["anyOf"][0]["maximum"] = settings.deadline_ms
    definitions["$defs"]["BatchRequest"]["properties"]["searches"]["maxItems"] = settings.max_batch
    definitions["$defs"]["EncodeRequest"]["properties"]["text"]["maxLength"] = settings.max_query_chars
    if settings.api_keys_file is not None:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            if str(errors.UnauthorizedError.statuses[0]) in operation["responses"]:
                operation["security"] = [{"key": []}]
    document["x-error-kinds"] = {
        kind: {"statuses": error.statuses, "title": error.title, "description": error.__doc__}
        for kind, error in errors.KINDS.items()
    }
    return document


def _body(model: type[BaseModel], mode: JsonSchemaMode = "serialization") -> dict[str, Any]:
    _MODELS[model] = mode
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}


def _problems(kinds: Sequence[type[errors.ServiceError]]) -> dict[int | str, dict[str, Any]]:
    texts: dict[int, list[str]] = {}
    possible: list[type[errors.ServiceError]] = [*kinds, errors.InternalError]
    for kind in possible:
        for status in kind.statuses:
            texts.setdefault(status, []).append(f"`{kind.kind}`: {kind.title}.")
    content = {PROBLEM_JSON: _body(schemas.Problem)}
    return {status: {"description": " ".join(text), "content": content} for status, text in texts.items()}
