"""The OpenAPI description. It adds the bodies, which FastAPI can't see because the routes handle JSON themselves."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.routing import BaseRoute

from lightretriever.artifacts.bundle.software import package_version
from lightretriever.service import errors, schemas
from lightretriever.service.http.json import JSON, JSON_LINES
from lightretriever.service.http.problems import PROBLEM_JSON, problem
from lightretriever.service.settings import Settings

__all__ = [
    "ADDRESS_ERRORS",
    "ADMIN_ERRORS",
    "DELETE_ERRORS",
    "DOCUMENT_ERRORS",
    "ENCODE_ERRORS",
    "EXAMPLES",
    "GATE_ERRORS",
    "PUT_ERRORS",
    "READY_ERRORS",
    "SEARCH_ERRORS",
    "describe",
    "description",
    "fitted",
]

# With API keys.
GATE_ERRORS: Final = (errors.UnauthorizedError, errors.ForbiddenError)
ENCODE_ERRORS: Final = (
    *GATE_ERRORS,
    errors.InvalidJsonError,
    errors.BodyTimeoutError,
    errors.BodyTooLargeError,
    errors.MediaTypeError,
    errors.InvalidRequestError,
    errors.NoTokensError,
    errors.NoDirectionError,
    errors.OverloadedError,
    errors.DeadlineError,
)
# NotReadyError: the engine may close while the last requests run.
SEARCH_ERRORS: Final = (*ENCODE_ERRORS, errors.SearchFailedError, errors.NotReadyError)
_OF_BODIES: Final = (
    errors.InvalidJsonError,
    errors.BodyTimeoutError,
    errors.BodyTooLargeError,
    errors.MediaTypeError,
)
ADDRESS_ERRORS: Final = tuple(error for error in SEARCH_ERRORS if error not in _OF_BODIES)
DOCUMENT_ERRORS: Final = (
    *GATE_ERRORS,
    errors.DocumentNotFoundError,
    errors.SearchFailedError,
    errors.DeadlineError,
    errors.NotReadyError,
    errors.OverloadedError,
)
DELETE_ERRORS: Final = (
    *GATE_ERRORS,
    errors.RouteNotFoundError,
    errors.DocumentNotFoundError,
    errors.ImmutableError,
    errors.VersionConflictError,
    errors.InvalidRequestError,
    errors.WriteFailedError,
    errors.NoRoomError,
    errors.DeadlineError,
    errors.NotReadyError,
    errors.OverloadedError,
)
PUT_ERRORS: Final = (*(error for error in DELETE_ERRORS if error is not errors.DocumentNotFoundError), *_OF_BODIES)
ADMIN_ERRORS: Final = (*GATE_ERRORS, errors.RouteNotFoundError, errors.BundleRefusedError, errors.NotReadyError)
READY_ERRORS: Final = (errors.NotReadyError,)

EXAMPLES: Final[dict[str, dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("examples.yaml").read_bytes())
"""Examples by model: several named ones of each of the `requests`, one of each of the `answers`."""

_MODELS: Final[list[tuple[type[BaseModel], JsonSchemaMode]]] = [
    *((getattr(schemas, name), "validation") for name in EXAMPLES["requests"]),
    *((getattr(schemas, name), "serialization") for name in EXAMPLES["answers"]),
    (schemas.Problem, "serialization"),
]
_EXAMPLE_NUMBER: Final = '"year"'
_SEARCH: Final = schemas.SearchRequest.model_json_schema()
_ABOUT: Final = """Hybrid search without a model in the query path: dense (Faiss) and sparse (Lucene), fused.

- **Fusion** is `linear` (a weighted sum of normalised scores) or `rrf` (`sum of weight / (rank_constant + rank)`,
  ranks counted from 1).
- **Errors** are `application/problem+json` (RFC 9457): `kind` is the stable name of an error, `errors` has the fields.
- **Degraded answers:** if one of the two legs fails or is late, the service answers with the other one and `degraded`
  names the missing leg. With `allow_partial: false` it answers with an error.
"""


def describe(
    summary: str,
    *,
    answer: type[BaseModel] | str,
    request: type[BaseModel] | None = None,
    media: str = JSON,
    errors: Sequence[type[errors.ServiceError]] = (),
    path_parameter: str = "",
    query_parameters: Mapping[str, str] = MappingProxyType({}),
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the keyword arguments of a FastAPI route. `answer` is a model, or else a media type, and `media` that
    of the request; `query_parameters` have
    the names of fields of SearchRequest, `parameters` describe others."""
    responses = {200: {"description": "The answer.", "content": _content(answer)}, **_problems(errors)}
    extra: dict[str, Any] = {}
    if request is not None:
        content = {media: {"schema": _ref(request), "examples": EXAMPLES["requests"][request.__name__]}}
        extra["requestBody"] = {"required": True, "content": content}
    described = [_query_parameter(*names) for names in query_parameters.items()]
    if path_parameter:
        parameter = {"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        described.append(parameter | {"example": "doc-1", "description": "Id, percent-encoded."})
    if described or parameters:
        extra["parameters"] = [*described, *map(dict, parameters)]
    return {"summary": summary, "responses": responses, "openapi_extra": extra}


def description(routes: Sequence[BaseRoute], settings: Settings) -> dict[str, Any]:
    """Describe the routes, the models, the kinds of errors, and the limits that the settings set."""
    version = package_version("lightretriever-search") or "not installed"
    document = get_openapi(title="LightRetriever Search", version=version, description=_ABOUT, routes=routes)
    _, definitions = models_json_schema(_MODELS, ref_template="#/components/schemas/{model}")
    document["components"] = {"schemas": definitions["$defs"]}
    _set_limits(definitions["$defs"], settings)
    if settings.api_keys_file is not None:
        _set_security(document)
    document["x-error-kinds"] = [
        {
            "kind": kind,
            "status": error.status,
            "title": error.title,
            "description": error.__doc__,
            "example": _example(error),
        }
        for kind, error in errors.KINDS.items()
    ]
    return document


def fitted(document: dict[str, Any], info: schemas.Info) -> dict[str, Any]:
    """The description with those examples of requests alone that a bundle answers, or a service that writes documents.
    An example's field `year` becomes a number that the bundle has; its vector has the bundle's dimension, and its
    impacts are of the bundle's terms."""
    fields, modes, spelling = info.fields, info.modes, info.spelling
    number = next((name for name, kind in info.filters.items() if kind == "number" and name in fields), None)

    def fit(value: dict[str, Any]) -> dict[str, Any] | None:
        if number is None and _EXAMPLE_NUMBER in json.dumps(value):
            return None
        value = json.loads(json.dumps(value).replace(_EXAMPLE_NUMBER, json.dumps(number)))
        snippets = value.get("snippets", {}).get("fields", [])
        needs_dense = "dense" not in modes and ("diversity" in value or "weights" in value.get("fusion", {}))
        needs_words = ("spelling" in value or "prefix" in value) and not spelling
        if needs_dense or needs_words or value.get("mode", modes[0]) not in modes or not set(snippets) <= set(fields):
            return None
        if "fields" in value:
            value["fields"] = [name for name in value["fields"] if name in fields]
        return value

    def fit_write(value: dict[str, Any]) -> dict[str, Any] | None:
        if "vector" not in value:
            return fit(value) if info.document_model is not None or "delete" in value else None
        value = dict(value)
        dimension = info.bundle.dimension
        del value["vector"]
        if "dense" in modes:
            value["vector"] = [round(dimension**-0.5, 4)] * dimension
        if info.bundle.vocabulary == "tokens":
            value["impacts"] = {f"{token}": impact for token, impact in enumerate(value["impacts"].values())}
        return value

    paths = copy.deepcopy(document["paths"])
    for path, method, media, fit_one in (
        ("/search", "post", JSON, fit),
        ("/search/batch", "post", JSON, fit),
        ("/documents/{id}", "put", JSON, fit_write),
        ("/documents", "post", JSON_LINES, fit_write),
    ):
        content = paths[path][method]["requestBody"]["content"][media]
        found = {name: {**example, "value": fit_one(example["value"])} for name, example in content["examples"].items()}
        content["examples"] = {name: example for name, example in found.items() if example["value"] is not None}
    return {**document, "paths": paths}


def _query_parameter(name: str, field: str) -> dict[str, Any]:
    schema = dict(_SEARCH["properties"][field])
    return {
        "name": name,
        "in": "query",
        "required": field == "query",
        "description": schema.pop("description"),
        "schema": schema,
    }


def _problems(kinds: Sequence[type[errors.ServiceError]]) -> dict[int, dict[str, Any]]:
    """Describe the errors of a route, grouped by status."""
    possible: list[type[errors.ServiceError]] = [*kinds, errors.InternalError]
    problems = {}
    for status in dict.fromkeys(kind.status for kind in possible):
        same = [kind for kind in possible if kind.status == status]
        examples = {kind.kind: {"summary": kind.title, "value": _example(kind)} for kind in same}
        problems[status] = {
            "description": ". ".join(kind.title for kind in same) + ".",
            "content": {PROBLEM_JSON: {"schema": _ref(schemas.Problem), "examples": examples}},
        }
    return problems


def _set_limits(definitions: dict[str, Any], settings: Settings) -> None:
    search = definitions["SearchRequest"]["properties"]
    search["query"]["maxLength"] = settings.max_query_chars
    search["k"]["maximum"] = settings.max_candidates
    search["candidates"]["anyOf"][0]["maximum"] = settings.max_candidates
    search["deadline_ms"]["anyOf"][0]["maximum"] = settings.deadline_ms
    definitions["BatchRequest"]["properties"]["searches"]["maxItems"] = settings.max_batch
    definitions["EncodeRequest"]["properties"]["text"]["maxLength"] = settings.max_query_chars


def _set_security(document: dict[str, Any]) -> None:
    """Mark the operations that need a key: those that may answer 401."""
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for operations in document["paths"].values():
        for operation in operations.values():
            if str(errors.UnauthorizedError.status) in operation["responses"]:
                operation["security"] = [{"key": []}]


def _content(answer: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {"schema": {"type": "string"}}}
    return {JSON: {"schema": _ref(answer), "example": EXAMPLES["answers"][answer.__name__]}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _example(kind: type[errors.ServiceError]) -> dict[str, Any]:
    if kind is errors.InvalidRequestError:
        error: errors.ServiceError = errors.InvalidRequestError.of(
            errors.FieldError("fusion.weights.dense", "Input should be greater than or equal to 0", -1)
        )
    else:
        error = kind(str(kind.__doc__))
    return problem(error, instance="/search", request_id="9f86d081884c7d65")
