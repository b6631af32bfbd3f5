"""Alerts and dashboard: their metrics and labels are the service's, and Prometheus' own tool reads them."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
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
    shutil.which("promtool") is None, reason="there is no Prometheus: apt-get install prometheus"
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


@pytest.fixture(scope="module")
def exposed(tiny_bundle: Bundle) -> dict[str, set[str]]:
    """Labels by name of every sample on /metrics after searches and errors of every kind, and those of counters that
    nothing has counted yet."""
    with Server(tiny_bundle.path, log_level="error") as server:
        for body in ({}, *({"query": "music", **more} for more in ({}, {"mode": "sparse"}, {"deadline_ms": 0.001}))):
            httpx2.post(f"{server.url}/search", json=body, timeout=60)
        text = httpx2.get(f"{server.url}/metrics", timeout=60).text
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


@pytest.mark.slow
@WITH_PROMETHEUS
def test_prometheus_reads_the_configuration_and_every_query(tmp_path: Path) -> None:
    """The panels' queries stand in a file of rules."""
    written = [text.replace("$__rate_interval", "1m").replace("$instance", ".*") for text in EXPRESSIONS.values()]
    rules = [{"record": f"query_{number}", "expr": text} for number, text in enumerate(written)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
    for kind, path in (("config", ALERTS.with_name("prometheus.yml")), ("rules", file)):
        run = subprocess.run(["promtool", "check", kind, path], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


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
