"""The compose file: valid, closed off, and leading to files and images that are there."""

import json
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from lightretriever.service.settings import Settings

from tests.deploy.image import ROOT, VERSION

FOLDER = ROOT / "deploy"
WRITTEN = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
# As an engine reads it, with BUNDLE=/srv/bundle.
COMPOSE = yaml.safe_load(WRITTEN.replace("${BUNDLE:?BUNDLE must name the folder of a bundle}", "/srv/bundle"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_it_is_valid() -> None:
    assert PyCompose.from_json(json.dumps(COMPOSE)).service_names() == list(SERVICES)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("mem_limit", "much", "much"), ("read_onlyy", True, "read_onlyy"), ("ports", ["a:b"], "port")],
)
def test_the_validation_can_fail(key: str, value: object, message: str) -> None:
    broken = {**COMPOSE, "services": {**SERVICES, "lightretriever": {**SERVICES["lightretriever"], key: value}}}
    with pytest.raises(ValueError, match=message):
        PyCompose.from_json(json.dumps(broken))


def test_a_bundle_must_be_named() -> None:
    assert WRITTEN.count("$") == 2, "the comment's $PWD and the bundle"
    assert "source: ${BUNDLE:?" in WRITTEN


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_closed_off(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["healthcheck"]["test"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "privileged" not in service
    assert "latest" not in service["image"]


def test_the_service_is_that_of_the_image() -> None:
    service = SERVICES["lightretriever"]
    assert service["image"].endswith(f":{VERSION}")
    assert (FOLDER / service["build"]["context"]).resolve() == ROOT
    (bundle,) = service["volumes"]
    assert (bundle["source"], bundle["target"], bundle["read_only"]) == ("/srv/bundle", "/bundle", True)
    settings = {name.removeprefix("LIGHTRETRIEVER_").lower() for name in service["environment"]}
    assert settings <= set(Settings.model_fields)
    check = json.dumps(service["healthcheck"]["test"])
    assert check in (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("CMD [", '["CMD", ')
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > Settings().shutdown_grace_s


def test_mounted_files_are_there() -> None:
    sources = [volume.split(":") for name in ("prometheus", "grafana") for volume in SERVICES[name]["volumes"]]
    folders = {source: target for source, target, *_ in sources if source.startswith(".")}
    assert all((FOLDER / source).is_dir() for source in folders)
    assert {source for source, *_ in sources} - set(folders) == set(COMPOSE["volumes"])
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    targets = {target: FOLDER / source for source, target in folders.items()}
    folder, _, file = home.rpartition("/")
    assert (targets[folder] / file).is_file()
    provider = yaml.safe_load((FOLDER / "grafana/provisioning/dashboards/lightretriever.yml").read_text("utf-8"))
    assert [item["options"]["path"] for item in provider["providers"]] == [folder]


def test_containers_find_each_other() -> None:
    scraped = yaml.safe_load((FOLDER / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": ["lightretriever:8080"]}]
    source = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert {"lightretriever", "prometheus"} <= set(SERVICES)
