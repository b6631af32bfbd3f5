"""Alerts and dashboard: their metrics and labels are the service's, and a real Prometheus answers their queries."""

import json
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.observability.metrics import Metrics
from tests.deploy.image import ROOT
from tests.service.process import Server
from tests.support.waiting import free_port

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "lightretriever.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
    **{f"panel {p['title']} {t['refId']}": t["expr"] for p in PANELS for t in p["targets"]},
}
# Counted only when something goes wrong that a test can't bring about from outside.
SELDOM = {"lightretriever_degraded_total", "lightretriever_unscored_total"}
# What Prometheus adds to whatever it scrapes.
ADDED = {"job", "instance"}
WITH_PROMETHEUS = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="there is no Prometheus: apt-get install prometheus",
)


def names_in(expression: str) -> set[str]:
    """The metrics of a PromQL expression."""
    return set(re.findall(r"\b(?:lightretriever|process)_\w+", expression)) | set(re.findall(r"\bup\b", expression))


def labels_in(expression: str) -> set[str]:
    """The labels of a PromQL expression: those compared, and those grouped by."""
    compared = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = re.findall(r"\b(?:by|on|group_left|without)\s*\(([^)]*)\)", expression)
    return set(compared) | {name.strip() for group in grouped for name in group.split(",") if name.strip()}


def labels_shown(text: str) -> set[str]:
    """The labels in a legend or an annotation."""
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))


def provoke(url: str) -> None:
    """Searches of every kind, and errors of the caller's and of the service's making."""
    bodies: list[dict[str, Any]] = [
        {"query": "music"},
        {"query": "player", "mode": "dense"},
        {"query": "music", "mode": "sparse"},
        {},
        {"query": "music", "deadline_ms": 0.001},
    ]
    for body in bodies:
        httpx2.post(f"{url}/search", json=body, timeout=60)


@pytest.fixture(scope="module")
def url(tiny_bundle: Bundle) -> Iterator[str]:
    """A running service that has answered some searches."""
    with Server(tiny_bundle.path, environment={"LIGHTRETRIEVER_LOG_LEVEL": "error"}) as server:
        address = server.url
        provoke(address)
        yield address


@pytest.fixture(scope="module")
def exposed(url: str) -> dict[str, set[str]]:
    """Labels by name of every sample on /metrics, and those of counters that nothing has counted yet."""
    text = httpx2.get(f"{url}/metrics", timeout=60).text
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[sample.name] |= set(sample.labels)
    assert not SELDOM & set(found)
    counters = Metrics()
    counters.degraded.labels(leg="dense", reason="late")
    counters.unscored.labels(leg="dense", reason="late")
    for family in text_string_to_metric_families(counters.text().decode()):
        for sample in family.samples:
            if sample.name in SELDOM:
                assert f"# TYPE {sample.name} counter" in text
                found[sample.name] |= set(sample.labels)
    return found


def test_alerts_and_panels_name_the_services_metrics_and_labels_and_all_of_them(exposed: dict[str, set[str]]) -> None:
    for where, expression in EXPRESSIONS.items():
        names = names_in(expression) - {"up"}
        assert names <= set(exposed), where
        assert names or "up" in expression, where
        assert labels_in(expression) <= ADDED.union(*(exposed[name] for name in names)), where
    shown = set().union(*(names_in(expression) for expression in EXPRESSIONS.values()))
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exposed}
    assert families == {re.sub("_(bucket|count|sum)$", "", name) for name in shown} - {"up"}
    for panel in PANELS:
        for target in panel["targets"]:
            assert labels_shown(target["legendFormat"]) <= labels_in(target["expr"]) | ADDED, panel["title"]
    for rule in RULES:
        told = set().union(*map(labels_shown, rule["annotations"].values()))
        assert told <= labels_in(rule["expr"]) | ADDED | {"lane"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action"}


def get(address: str, path: str, **parameters: str) -> Any:
    """Ask Prometheus' API."""
    return httpx2.get(f"{address}/api/v1/{path}", params=parameters, timeout=60).raise_for_status().json()["data"]


@pytest.fixture(scope="module")
def prometheus(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the committed configuration and alerts that has scraped the service a few times."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((ALERTS.with_name("prometheus.yml")).read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copy(ALERTS, folder)
    address = f"127.0.0.1:{free_port()}"
    options = [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}", "--log.level=error"]
    with subprocess.Popen(["prometheus", f"--config.file={folder / 'prometheus.yml'}", *options]) as process:
        try:
            scrapes = 0
            while scrapes < 4:
                assert process.poll() is None
                time.sleep(0.3)
                with suppress(httpx2.HTTPError):
                    found = get(f"http://{address}", "query", query="count_over_time(lightretriever_ready[5m])")
                    scrapes = int(found["result"][0]["value"][1]) if found["result"] else 0
                    provoke(url)
            yield f"http://{address}"
        finally:
            process.terminate()


@pytest.mark.slow
@WITH_PROMETHEUS
def test_prometheus_takes_the_configuration_answers_and_no_alert_fires(prometheus: str) -> None:
    config = ALERTS.with_name("prometheus.yml")
    run = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for where, written in EXPRESSIONS.items():
        expression = written.replace("$__rate_interval", "1m").replace("$instance", ".*")
        without_threshold = re.sub(r"\s(?:>|==)\s*[\d.]+\s*$", "", expression)
        assert (without_threshold != expression) == where.startswith("alert")
        result = get(prometheus, "query", query=without_threshold)["result"]
        assert result or SELDOM & names_in(expression) or '="opensearch"' in expression, where  # there is no cluster
    (group,) = get(prometheus, "rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {rule["alert"]: "ok" for rule in RULES}
    assert "firing" not in {rule["state"] for rule in group["rules"]}


REQUESTS = 'lightretriever_request_seconds_count{status="%s"}'
BUCKET = 'lightretriever_search_seconds_bucket{le="%s"}'
VERSION = 'lightretriever_bundle_info{version="%s",instance="%s"}'
# By alert, series with one sample a minute for an hour: under which it fires, and a little better, under which it
# doesn't. `_` stands for no sample.
FIRES: dict[str, dict[str, tuple[str, str]]] = {
    "LightRetrieverDown": {'up{job="lightretriever"}': ("0x60", "1x60")},
    "LightRetrieverNotReady": {"lightretriever_ready": ("0x60", "1x60")},
    "LightRetrieverErrors": {
        REQUESTS % 200: ("0+970x60", "0+970x60"),
        REQUESTS % 503: ("0+30x60", "_x60"),
        REQUESTS % 422: ("_x60", "0+30x60"),
    },
    "LightRetrieverDegraded": {
        "lightretriever_search_seconds_count": ("0+100x60", "0+1000x60"),
        'lightretriever_degraded_total{leg="dense",reason="late"}': ("0+2x60", "0+2x60"),
    },
    "LightRetrieverSlow": {
        BUCKET % 0.1: ("0+90x60", "0+100x60"),
        **{BUCKET % le: ("0+100x60", "0+100x60") for le in (0.25, "+Inf")},
    },
    "LightRetrieverCrowded": {"lightretriever_requests_in_flight": ("20x60", "8x60")},
    "LightRetrieverStuckCalls": {'lightretriever_abandoned_calls{lane="dense"}': ("1x60", "0x60")},
    "LightRetrieverBundlesDiffer": {
        VERSION % ("a", "a"): ("1x60", "1x60"),
        VERSION % ("a", "b"): ("_x60", "1x60"),
        VERSION % ("b", "b"): ("1x60", "_x60"),
    },
    "LightRetrieverBundleRefused": {
        'lightretriever_swaps_total{result="refused"}': ("0+1x60", "3x60"),
        'lightretriever_swaps_total{result="swapped"}': ("_x60", "0+1x60"),
    },
    "LightRetrieverRulesRefused": {"lightretriever_rules_refused": ("1x60", "0x60")},
    "LightRetrieverFileDescriptors": {
        'process_open_fds{job="lightretriever"}': ("900x60", "90x60"),
        'process_max_fds{job="lightretriever"}': ("1024x60", "1024x60"),
    },
}


@pytest.mark.slow
@WITH_PROMETHEUS
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    assert list(FIRES) == [rule["alert"] for rule in RULES]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values[not fires]} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "50m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
            ],
        }
        for alert, series in FIRES.items()
        for fires in (True, False)
    ]
    shutil.copy(ALERTS, tmp_path)
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [ALERTS.name], "tests": tests}), "utf-8")
    run = subprocess.run(["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
