"""What is fuzzed: functions of bytes that let no exception out unless it is a finding."""

import json
from pathlib import Path
from typing import Any, Final, get_args

from lightretriever.artifacts.bundle.manifest import parse_manifest
from lightretriever.artifacts.errors import BundleError
from lightretriever.service.errors import ServiceError
from lightretriever.service.http.json import parse, parse_batch, problem_response
from lightretriever.service.schemas import BatchRequest, EncodeRequest, Mode, SearchRequest, Weights
from lightretriever.service.search.request import RequestReader
from lightretriever.service.settings import Settings

from tests.support.tampering import sign

__all__ = ["CORPUS", "TARGETS", "FindingError", "corpus"]

CORPUS: Final = Path(__file__).with_name("corpus")
_SETTINGS: Final = Settings()
_READER: Final = RequestReader(
    _SETTINGS,
    tasks={"default": None, "fact": None},
    default_task="default",
    fields=("title", "text", "year"),
    filters={"year": "number"},
    modes=get_args(Mode),
    weights=Weights(dense=0.5, sparse=0.5),
    spells=True,
    reranks=True,
)
_MODELS: Final = (SearchRequest, BatchRequest, EncodeRequest)
_LONGEST_PROBLEM: Final = 10_000


class FindingError(Exception):
    """What is no crash, but still not as promised."""


def body(data: bytes) -> None:
    """The body of a request, from HTTP to what the engine would be given."""
    for model in _MODELS:
        try:
            _check(_read(data, model))
        except ServiceError as error:
            _check_problem(error)


def _read(data: bytes, model: type[Any]) -> Any:
    return parse_batch(data, _SETTINGS.max_batch) if model is BatchRequest else parse(data, model)


def _check(request: Any) -> None:
    if isinstance(request, SearchRequest):
        _READER.read_search(request)
    elif isinstance(request, BatchRequest):
        _READER.read_batch(request.searches)
    else:
        _READER.check_encode(request)


def _check_problem(error: ServiceError) -> None:
    """A problem is a 4xx of moderate size, and one with fields at fault names them."""
    answer = json.loads(bytes(problem_response(error, instance="/search", request_id="1").body))
    if not 400 <= answer["status"] < 500 or not answer["detail"]:
        raise FindingError(f"no answer for a client: {answer}") from error
    if answer["status"] == 422 and not all(item["field"] and item["message"] for item in answer["errors"] or [{}]):
        raise FindingError(f"no field is named: {answer}") from error
    if len(json.dumps(answer)) > _LONGEST_PROBLEM:
        raise FindingError("the problem is longer than a problem should be") from error


def manifest(data: bytes) -> None:
    """A manifest as it is, and once more with the hash that its fields have."""
    _parse(data)
    try:
        signed = json.dumps(sign(json.loads(data))).encode()
    except (ValueError, RecursionError, AttributeError):
        return
    _parse(signed)


def _parse(data: bytes) -> None:
    path = Path("manifest.json")
    try:
        read = parse_manifest(data, path)
    except BundleError as error:
        if not error.message.startswith("manifest.json: "):
            raise FindingError(f"the file is not named: {error}") from error
        return
    if parse_manifest(read.to_bytes(), path) != read:
        raise FindingError("the manifest is another one when it is written and read again")


TARGETS: Final = {"body": body, "manifest": manifest}
"""By name."""


def corpus(target: str) -> list[bytes]:
    """Inputs worth keeping: where fuzzing begins, and what every run of the tests tries first. A file is a JSON list;
    a text stands for the bytes of its code points."""
    return [text.encode("latin-1") for text in json.loads((CORPUS / f"{target}.json").read_text(encoding="utf-8"))]
