"""Settings from every source, clear about what is wrong; what pages say of settings, routes, fields, metrics and
errors; and the API against its own description."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lightretriever.service import schemas
from lightretriever.service.errors import KINDS, SettingsError
from lightretriever.service.http.routes import router
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, load_settings
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.tiny import BundleOf
from tests.support.wordings import raises

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*Settings.model_fields, "config"):
        monkeypatch.delenv(ENV_PREFIX + name.upper(), raising=False)


def test_environment_over_file_over_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("max_candidates: 50\nmax_waiting: 5\ndeadline_ms: 250.5\n")
    monkeypatch.setenv("LIGHTRETRIEVER_MAX_WAITING", "6")
    monkeypatch.setenv("LIGHTRETRIEVER_DEADLINE_MS", "100")
    settings = load_settings(file)
    assert (settings.candidates, settings.max_candidates, settings.keep_alive_s) == (50, 50, 75)
    assert (settings.max_waiting, settings.deadline_ms) == (6, 100)
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    assert load_settings().candidates == 50
    other = tmp_path / "other.yaml"
    other.write_text("")
    assert load_settings(other).candidates == 100


PORTS = ("PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP")


def test_variables_of_clients_and_of_kubernetes_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets those of ports for a service of this name."""
    for name in ("URL", "API_KEY", *PORTS, *(f"SEARCH_{name}" for name in PORTS)):
        for value in ("tcp://10.0.0.1:80", ""):
            monkeypatch.setenv(f"LIGHTRETRIEVER_{name}", value)
            assert load_settings() == Settings()


def test_unknown_and_empty_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LIGHTRETRIEVER_DEADLINE", "LIGHTRETRIEVER_HOST", "lightretriever_max_batches"):
        with monkeypatch.context() as patched, raises(SettingsError, naming="deadline_ms"):
            patched.setenv(variable, "5")
            load_settings()
    for name in (*(Settings.model_fields.keys() - {"trusted_proxies"}), "config"):
        for value in ("", " "):
            with monkeypatch.context() as patched, raises(SettingsError):
                patched.setenv(ENV_PREFIX + name.upper(), value)
                load_settings()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("deadline: 5", ["'deadline'", "deadline_ms"]),
        ("deadline_ms: soon", ["'deadline_ms'", "'soon'", "LIGHTRETRIEVER_DEADLINE_MS"]),
        ("deadline_ms: 0", ["'deadline_ms'", "greater than 0"]),
        ("deadline_ms: .nan", ["'deadline_ms'"]),
        ("opensearch_index: x", ["'opensearch_url'", "--opensearch-url"]),
        ("log_level: loud", ["'log_level'", "'loud'"]),
        ("trusted_proxies: 10.0.0.0/8x", ["'trusted_proxies'", "'10.0.0.0/8x'", "such as 10.0.0.0/8, or *"]),
        ("trusted_proxies: 127.0.0.1, 10.0.0.1/8", ["'trusted_proxies'", "host bits"]),
        ("- candidates", ["name: value", "list"]),
        ("candidates: [", ["not YAML"]),
        # None of them repeats a secret.
        ("rerank_url: ftp://user:SECRET@x", ["rerank_url"]),
        *((f"rerank_url: {url}", ["rerank_url"]) for url in ("http://user:SECRET@x/y", "http:///SECRET", "http://")),
        ("rerank_url: [SECRET]", ["rerank_url"]),
        ('rerank_url: "http://user:SECRET@x', ["not YAML"]),
        ("rerank_url: http://x\n  password: SECRET: SECRET", ["not YAML"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, content: str, words: list[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    for word in words:
        assert word in str(caught.value)
    for never in ("\n", "user:", "SECRET"):
        assert never not in str(caught.value)
    assert "SECRET" not in repr(Settings(rerank_url="http://x/SECRET"))


def test_trusted_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list trusts none."""
    for proxies in ("*", " * ", "", "::1", "127.0.0.1, 10.0.0.0/8,fd00::/8", "192.0.2.1,"):
        monkeypatch.setenv("LIGHTRETRIEVER_TRUSTED_PROXIES", proxies)
        assert load_settings().trusted_proxies == proxies


def section(heading: str, end: str = "\n## ") -> str:
    """What stands under a heading of the documentation."""
    return DOCUMENTATION.partition(f"\n## {heading}\n")[2].partition(end)[0]


def documented_default(field: FieldInfo) -> str:
    """As YAML has it."""
    default = field.get_default()
    if default is None:
        return "null"
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_every_setting_is_documented_with_its_default_and_help() -> None:
    documented = [line for line in section("Settings").splitlines() if line.startswith("| `")]
    assert documented == [
        f"| `{name}` | `{documented_default(field)}` | {' '.join(str(field.description).split())} |"
        for name, field in Settings.model_fields.items()
    ]


def routes() -> set[tuple[str, str]]:
    """Method and path of each."""
    found = [route for route in router.routes if isinstance(route, APIRoute)]
    return {(method, route.path.replace(":any", "")) for route in found for method in route.methods or ()}


def test_every_route_is_documented() -> None:
    documented = re.findall(r"`(GET|POST|PUT|DELETE) (/[^`?]*)", section("Routes"))
    assert {*documented} == routes() | {("GET", "/openapi.json")}


def test_every_field_of_a_search_is_documented() -> None:
    fields = r"(?:^- |, |; )`(\w+)`(?=[^.\n;]*:)"
    documented = re.findall(fields, section("A search", "\n### "), flags=re.MULTILINE)
    assert set(documented) == set(SearchRequest.model_fields)


def test_every_metric_is_documented() -> None:
    documented = set(re.findall(r"`(lightretriever_\w+)`", section("Metrics")))
    suffix = {"counter": "_total", "info": "_info"}
    found = {
        family.name + suffix.get(family.type, "")
        for family in Metrics().registry.collect()
        if family.name.startswith("lightretriever")
    }
    assert documented == found


def test_every_kind_of_error_is_documented_with_its_status() -> None:
    documented = re.findall(r"^- `(\w+)` \(([\d, ]+)\): ", section("Errors"), flags=re.MULTILINE)
    assert dict(documented) == {kind: ", ".join(map(str, error.statuses)) for kind, error in KINDS.items()}
    assert all(error.__doc__ for error in KINDS.values())


def test_processes_divide_the_processors_into_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(search_threads=7).threads() == Settings(search_threads=7).for_processes(3).threads() == 7
    cluster = Settings(opensearch_url="http://cluster", opensearch_index="texts")
    assert cluster.threads() == cluster.for_processes(4).threads() == 16
    for processors, processes, threads in ((1, 1, 2), (2, 1, 2), (3, 1, 3), (2, 2, 1), (3, 2, 1), (2, 4, 1), (8, 2, 4)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, many=processors: set(range(many)))
        assert Settings().for_processes(processes).threads() == threads
        for waiting in (Settings(rerank_url="http://model/rerank"), Settings(live=Path("journal"))):
            assert waiting.for_processes(processes).threads() == max(threads, 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert Settings().for_processes(4).threads() == Settings().threads() == 4


@pytest.fixture(scope="module")
def description(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_every_route_is_described(description: dict[str, Any]) -> None:
    described = {(method, path) for path, methods in description["paths"].items() for method in methods}
    assert described == {(method.lower(), path) for method, path in routes()}
    for method, path in described:
        operation = description["paths"][path][method]
        assert operation["summary"]
        assert operation["description"]
        assert "500" in operation["responses"]
        late = path.startswith(("/search", "/documents", "/terms", "/encode"))
        assert ("504" in operation["responses"]) == late
        assert ("503" in operation["responses"]) == (late or path.startswith(("/readyz", "/admin")))
        for status, response in operation["responses"].items():
            ((media, content),) = response["content"].items()
            if status != "200":
                assert media == "application/problem+json"
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                kinds = re.findall(r"`(\w+)`: ", response["description"])
                assert kinds
                assert all(int(status) in KINDS[kind].statuses for kind in kinds)
        if method == "post" and not path.startswith("/admin"):
            ((media, content),) = operation["requestBody"]["content"].items()
            assert media == ("application/x-ndjson" if path == "/documents" else "application/json")
            assert description["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]["examples"]


def test_references_addresses_kinds_and_limits(description: dict[str, Any]) -> None:
    """Addresses lead to a collection, and through a proxy that takes a prefix off."""
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert names <= description["components"]["schemas"].keys()
    assert {"SearchRequest", "DocumentTerms", "Problem"} <= names
    assert description["servers"] == [{"url": "."}]
    listed = {kind: error["statuses"] for kind, error in description["x-error-kinds"].items()}
    assert listed == {kind: [*error.statuses] for kind, error in KINDS.items()}
    search = description["components"]["schemas"]["SearchRequest"]["properties"]
    assert search["query"]["maxLength"] == 10_000
    assert search["k"]["maximum"] == search["candidates"]["anyOf"][0]["maximum"] == 1_000
    assert description["components"]["schemas"]["BatchRequest"]["properties"]["searches"]["maxItems"] == 64


@pytest.mark.parametrize(("vocabulary", "dense"), [("words", True), ("tokens", True), ("tokens", False)])
def test_any_bundle_answers_the_examples_of_its_description(bundle_of: BundleOf, vocabulary: str, dense: bool) -> None:
    with client_of(bundle_of(vocabulary, dense), SETTINGS) as client:
        described = client.get("/openapi.json").json()["components"]["schemas"]
        models = {"/search": "SearchRequest", "/search/batch": "BatchRequest", "/encode": "EncodeRequest"}
        for path, name in models.items():
            for example in described[name]["examples"]:
                answer = client.post(path, json=example)
                assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("model", [schemas.DocumentWrite, schemas.DocumentLine])
def test_examples_of_documents_are_valid(model: type[BaseModel]) -> None:
    for example in model.model_json_schema()["examples"]:
        model.model_validate(example)


def test_answers_have_the_documented_shape(client: TestClient) -> None:
    """Strict models, unknown fields refused: more than the description could say. Searches: test_answers.py."""
    for answer, model in (
        (client.post("/encode", json={"text": "music"}), schemas.EncodeResponse),
        (client.get("/documents/music"), schemas.Document),
        (client.get("/terms/music"), schemas.DocumentTerms),
        (client.get("/info"), schemas.Info),
        (client.get("/livez"), schemas.Status),
        (client.get("/readyz"), schemas.Status),
        (client.get("/nix"), schemas.Problem),
    ):
        model.model_validate(answer.json())
