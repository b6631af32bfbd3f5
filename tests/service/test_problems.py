"""How the service refuses wrong requests, all in one file, problems.txt: status, kind and fields, not words.

python -m tests.service.test_problems    write the file again, after a change; look at the difference
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.service.errors import KINDS
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import make_tiny_bundle, tiny_documents

HEAD = "# Wrong requests after the status, kind and fields of their answers; written by tests/service/test_problems.py"
REQUEST = re.compile(r"(?:POST|GET|PUT|DELETE|PATCH) /.*")
FILE = Path(__file__).with_name("problems.txt")
FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "day": "date"}
SERVICES = {
    "words": {"vocabulary": "words", "fields": FIELDS},
    "tokens": {"vocabulary": "tokens"},
    "sparse": {"vocabulary": "words", "dense": False},
    "matched": None,
}
"""Bundles by the name of their part of the file: with declared fields; with terms that are tokens; without a dense leg;
with thresholds of a match."""


@contextmanager
def serving(service: str, folder: Path) -> Iterator[TestClient]:
    options: Any = SERVICES[service]
    documents = [replace(one, more={"source": "wiki", "day": "2024-05-31"}) for one in tiny_documents(20)]
    if options is None:
        bundle = make_meaningful_bundle(folder / service)
    else:
        bundle = make_tiny_bundle(folder / service, documents=documents, **options)
    with client_of(bundle, SETTINGS) as client:
        yield client


def expanded(value: Any) -> Any:
    """The value with `{times: [VALUE, COUNT]}` written out."""
    if isinstance(value, list):
        return [expanded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"times"}:
        part, count = value["times"]
        return expanded(part) * count
    return {name: expanded(one) for name, one in value.items()}


def answered(client: TestClient, request: str) -> str:
    """Return the request after status, kind and wrong fields of its answer."""
    method, path, *body = request.split(" ", 2)
    content = expanded(orjson.loads(body[0])) if body else None
    answer = client.request(method, path, **({} if content is None else {"json": content}))
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    fields = [f"{error['field']}: {error['message']}" for error in problem["errors"]]
    if fields:
        assert problem["detail"] == fields[0] + (f" ({len(fields) - 1} more)" if len(fields) > 1 else "")
    names = ", ".join(error["field"] for error in problem["errors"])
    return f"{problem['status']} {problem['kind']} [{names}] {request}"


def parts() -> dict[str, list[str]]:
    """Return the lines of each part of the file."""
    sections = FILE.read_text("utf-8").split("\n## ")[1:]
    return {name: lines for name, *lines in (section.rstrip("\n").split("\n") for section in sections)}


def answers(service: str, lines: list[str], folder: Path) -> list[str]:
    """Return the lines of a part, with the service's answers to the requests at their ends."""
    with serving(service, folder) as client:
        return [answered(client, request[0]) for line in lines if (request := REQUEST.search(line))]


def titles() -> list[str]:
    return [f"{error.statuses()} {kind}: {error.title}" for kind, error in KINDS.items()]


@pytest.mark.parametrize("service", SERVICES)
def test_wrong_requests_are_refused_by_kind_and_field(tmp_path: Path, service: str) -> None:
    assert answers(service, parts()[service], tmp_path) == parts()[service]


def test_every_kind_has_its_title() -> None:
    assert titles() == parts()["titles"]
    assert parts().keys() == {"titles", *SERVICES}


def write() -> None:
    """Ask the file's questions again, and write the answers."""
    with TemporaryDirectory() as folder:
        made = {name: answers(name, lines, Path(folder)) for name, lines in parts().items() if name in SERVICES}
    sections = ["\n".join([f"## {name}", *lines]) for name, lines in ({"titles": titles()} | made).items()]
    FILE.write_text("\n".join([HEAD, *sections, ""]), "utf-8")


if __name__ == "__main__":
    write()
