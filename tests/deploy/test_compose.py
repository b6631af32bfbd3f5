"""The compose files: valid, closed off, and leading to files and images that are there."""

import json
from typing import Any

import yaml
from compose_spec import PyCompose

from lightretriever.service.settings import Settings
from tests.deploy.image import ROOT, VERSION

FOLDER = ROOT / "deploy"
WRITTEN = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
# As an engine reads it, with BUNDLE=/srv/bundle.
COMPOSE = yaml.safe_load(WRITTEN.replace("${BUNDLE:?BUNDLE must name the folder of a bundle}", "/srv/bundle"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CLUSTER = (FOLDER / "compose.cluster.yaml").read_text(encoding="utf-8")
CLUSTERED = yaml.safe_load(
    CLUSTER.replace("${BUNDLE:?BUNDLE must name the folder of a query bundle}", "/srv/query-bundle").replace(
        "${INDEX:?INDEX must name the index that push wrote}", "products"
    )
)
NODES: dict[str, dict[str, Any]] = {n: one for n, one in CLUSTERED["services"].items() if n.startswith("opensearch-")}
CLIENTS: dict[str, dict[str, Any]] = {n: one for n, one in CLUSTERED["services"].items() if n.startswith("lightr")}


def test_both_files_are_valid_and_have_no_variables_but_what_must_be_named() -> None:
    assert PyCompose.from_json(json.dumps(COMPOSE)).service_names() == list(SERVICES)
    assert PyCompose.from_json(json.dumps(CLUSTERED)).service_names() == [*NODES, *CLIENTS, "prometheus", "grafana"]
    assert (len(NODES), len(CLIENTS)) == (3, 2)
    assert WRITTEN.count("$") == 2, "the comment's $PWD and the bundle"
    assert CLUSTER.count("${") == len(("BUNDLE", "INDEX"))


def test_every_container_is_closed_off() -> None:
    for name, service in [*SERVICES.items(), *NODES.items(), *CLIENTS.items()]:
        assert service.get("read_only", False) == (name not in NODES), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["healthcheck"]["test"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert "privileged" not in service, name
        assert "latest" not in service["image"], name


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
    assert int(service["stop_grace_period"].removesuffix("s")) > Settings().shutdown_grace_s


def test_mounted_files_are_there() -> None:
    sources = [volume.split(":") for name in ("prometheus", "grafana") for volume in SERVICES[name]["volumes"]]
    folders = {source: target for source, target, *_ in sources if source.startswith(".")}
    assert all((FOLDER / source).is_dir() for source in folders)
    assert {source for source, *_ in sources} - set(folders) == set(COMPOSE["volumes"])
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    targets = {target: FOLDER / source for source, target in folders.items()}
    folder, _, file = home.rpartition("/")
    assert (targets[folder] / file).is_file()
    provider = written("grafana/provisioning/dashboards/lightretriever.yml")
    assert [item["options"]["path"] for item in provider["providers"]] == [folder]


def test_a_clusters_containers_are_those_of_the_other_file_but_for_the_backend() -> None:
    for name, node in NODES.items():
        settings = node["environment"]
        assert settings["node.name"] == name
        assert settings["discovery.seed_hosts"].split(",") == list(NODES)
        assert settings["cluster.initial_cluster_manager_nodes"].split(",") == list(NODES)
        (volume,) = node["volumes"]
        assert volume.split(":")[0] == name
        assert name in CLUSTERED["volumes"]
    alone = SERVICES["lightretriever"]
    same = set(alone) - {"environment", "volumes", "ports", "mem_limit"}
    for service in CLIENTS.values():
        assert {key: service[key] for key in same} == {key: alone[key] for key in same}
        assert service["volumes"] == [{**alone["volumes"][0], "source": "/srv/query-bundle"}]
        values = {key.removeprefix("LIGHTRETRIEVER_").lower(): value for key, value in service["environment"].items()}
        chosen = Settings.model_validate(values)
        assert chosen.backend == "opensearch"
        assert chosen.opensearch_url == ",".join(f"http://{node}:9200" for node in NODES)
        assert set(service["depends_on"]) <= set(NODES)
    assert len({service["ports"][0] for service in CLIENTS.values()}) == len(CLIENTS)


def written(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def test_what_is_watched_are_the_services() -> None:
    source = written("grafana/provisioning/datasources/prometheus.yml")
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    alone, both = written("prometheus/prometheus.yml"), written("prometheus/cluster.yml")
    assert alone["scrape_configs"][0].pop("static_configs") == [{"targets": ["lightretriever:8080"]}]
    (scraped,) = both["scrape_configs"]
    assert scraped.pop("static_configs") == [{"targets": [f"{name}:8080" for name in CLIENTS]}]
    assert both == alone
    assert "--config.file=/etc/prometheus/cluster.yml" in CLUSTERED["services"]["prometheus"]["command"]
    for name in ("prometheus", "grafana"):
        assert CLUSTERED["services"][name]["extends"] == {"file": "compose.yaml", "service": name}
        named = [volume.split(":")[0] for volume in SERVICES[name]["volumes"] if not volume.startswith(".")]
        assert set(named) <= set(CLUSTERED["volumes"])
