"""The Helm chart, rendered by Helm and held against the schemas of Kubernetes, old and new."""

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.install.install_helm import find_helm
from lightretriever.service.settings import Settings
from tests.deploy.image import ROOT, VERSION

CHART = ROOT / "deploy" / "helm" / "lightretriever"
HELM = find_helm()
CLAIM = {"bundle": {"claim": "corpus", "subPath": "2026/bundle"}}
COPY = {"bundle": {"image": "registry.example/bundle:7", "copySizeLimit": "4Gi"}}
VOLUME = {"bundle": {"image": "registry.example/bundle:7", "imageMode": "volume"}}
EVERYTHING = {
    **CLAIM,
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "monitoring"}},
    "settings": {"max_body_bytes": 10485760, "watch_s": 0.5, "log_level": "warning"},
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "token"}}}],
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccountName": "searcher",
    "priorityClassName": "high",
    "podAnnotations": {"note": "text"},
    "podLabels": {"team": "search"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "service": {"annotations": {"note": "text"}},
    "extraVolumes": [{"name": "keys", "secret": {"secretName": "search-keys"}}],
    "extraVolumeMounts": [{"name": "keys", "mountPath": "/keys", "readOnly": True}],
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
    "ingress": {"enabled": True, "className": "nginx", "host": "search.example", "tlsSecret": "cert"},
}
ON_CLUSTER, NODES = (
    yaml.safe_load((ROOT / "deploy" / "helm" / "cluster" / f"{name}.yaml").read_text(encoding="utf-8"))
    for name in ("lightretriever", "opensearch")
)
CHOICES = {"claim": CLAIM, "copy": COPY, "volume": VOLUME, "everything": EVERYTHING, "cluster": ON_CLUSTER}
PUBLIC = ("/search", "/encode", "/documents", "/terms", "/info", "/openapi.json")
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
KUBERNETES = ("1.25.0", "1.31.0", kubernetes_validate.latest_version())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HELM is None, reason="there is no helm: run deploy/install/install_helm.py, or put it on PATH"),
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for what Helm wants to remember."""
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HELM_{kind}_HOME", str(tmp_path))


def helm(*arguments: str | Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), *map(str, arguments), "--values=-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)


def render(values: dict[str, Any], version: str = KUBERNETES[-1]) -> dict[str, dict[str, Any]]:
    """The manifests by kind."""
    run = helm("template", "search", CHART, "--namespace=prod", f"--kube-version={version}", values=values)
    assert run.returncode == 0, run.stderr
    manifests = [manifest for manifest in yaml.safe_load_all(run.stdout) if manifest]
    assert len({manifest["kind"] for manifest in manifests}) == len(manifests)
    return {manifest["kind"]: manifest for manifest in manifests}


def pod_of(values: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = render(values)["Deployment"]["spec"]["template"]["spec"]
    return pod


def paths_of(values: dict[str, Any]) -> dict[str, str]:
    """The public paths, and how they are compared."""
    (rule,) = render(values)["Ingress"]["spec"]["rules"]
    return {path["path"]: path["pathType"] for path in rule["http"]["paths"]}


@pytest.mark.parametrize("values", CHOICES.values(), ids=CHOICES)
def test_helm_kubernetes_and_openshift_take_it(values: dict[str, Any]) -> None:
    """OpenShift gives each namespace a range of users, and refuses a pod that names another."""
    run = helm("lint", CHART, "--strict", values=values)
    assert run.returncode == 0, run.stdout + run.stderr
    for version in KUBERNETES[-1:] if values is VOLUME else KUBERNETES:
        manifests = render(values, version)
        assert {"Deployment", "Service", "PodDisruptionBudget"} <= set(manifests)
        for kind, manifest in manifests.items():
            if kind != "ServiceMonitor":  # the Prometheus operator's
                kubernetes_validate.validate(manifest, version, strict=True)
    chart = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert "podSecurityContext: {runAsUser: null, runAsGroup: null}" in chart
    pod = pod_of({**values, "podSecurityContext": {"runAsUser": None, "runAsGroup": None}})
    assert {kind for volume in pod["volumes"] for kind in volume} <= VOLUMES | {"name", "image"}
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("values", "scheme"),
    [({}, "http"), ({"settings": {"tls_certificate_file": "/tls/tls.crt"}}, "https"), ({"scheme": "https"}, "https")],
)
def test_who_asks_for_health_and_metrics_speaks_as_the_service_does(values: dict[str, Any], scheme: str) -> None:
    manifests = render({**CLAIM, **values, "serviceMonitor": {"enabled": True}})
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    asked = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "readiness", "liveness")}
    paths = {probe: get["path"] for probe, get in asked.items()}
    assert paths == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}
    assert {get["scheme"] for get in asked.values()} == {scheme.upper()}
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 300
    assert manifests["ServiceMonitor"]["spec"]["endpoints"][0]["scheme"] == scheme


def test_the_public_address_has_the_public_paths_alone() -> None:
    assert {"Ingress", "NetworkPolicy"}.isdisjoint(render(CLAIM))
    assert paths_of(EVERYTHING) == {"/": "Exact", **dict.fromkeys(PUBLIC, "Prefix")}
    policy = render(EVERYTHING)["NetworkPolicy"]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http"}], "from": EVERYTHING["networkPolicy"]["from"]}]  # type: ignore[index]
    assert policy["egress"] == []
    paths = paths_of({**CLAIM, "ingress": {"enabled": True, "collections": ["notes", "shop"]}})
    for name in ("notes", "shop"):
        below = {path.removeprefix(f"/collections/{name}") for path in paths if path.startswith(f"/collections/{name}")}
        assert below == {*PUBLIC, "", "/"}
    assert paths["/collections"] == paths["/collections/notes"] == paths["/collections/notes/"] == "Exact"


def test_containers_have_no_rights() -> None:
    pod = pod_of(COPY)
    assert pod["automountServiceAccountToken"] is False
    own = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["securityContext"] == own
    assert "\nUSER 10001:10001\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    writing = pod_of({**COPY, "securityContext": {"readOnlyRootFilesystem": False}})
    for read_only, containers in ((True, pod), (False, writing)):
        for container in [*containers["initContainers"], *containers["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": read_only,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_the_bundle_is_mounted_where_the_image_looks_for_it() -> None:
    from_claim, copied, volume = map(pod_of, (CLAIM, COPY, VOLUME))
    mount = {"name": "bundle", "mountPath": "/bundle", "readOnly": True}
    assert from_claim["containers"][0]["volumeMounts"][0] == {**mount, "subPath": "2026/bundle"}
    assert from_claim["volumes"][0]["persistentVolumeClaim"] == {"claimName": "corpus", "readOnly": True}
    assert copied["containers"][0]["volumeMounts"][0] == mount
    assert copied["volumes"][0]["emptyDir"] == {"sizeLimit": "4Gi"}
    (init,) = copied["initContainers"]
    assert (init["image"], init["command"]) == (COPY["bundle"]["image"], ["cp", "-R", "/bundle/.", "/target/"])
    assert "initContainers" not in volume
    image = {"reference": "registry.example/bundle:7", "pullPolicy": "IfNotPresent"}
    assert volume["volumes"][0] == {"name": "bundle", "image": image}
    assert volume["containers"][0]["volumeMounts"][0]["subPath"] == "bundle"


def test_settings_commands_and_volumes_reach_the_service_as_they_are_written() -> None:
    (plain,) = pod_of(CLAIM)["containers"]
    assert plain["ports"] == [{"name": "http", "containerPort": 8080}]
    assert "args" not in plain
    args = ["serve", "notes=/bundle/notes", "shop=/bundle/shop", "--host", "0.0.0.0"]
    assert pod_of({**CLAIM, "args": args})["containers"][0]["args"] == args
    pod = pod_of(EVERYTHING)
    assert {item["name"]: item.get("value") for item in pod["containers"][0]["env"]} == {
        "LIGHTRETRIEVER_MAX_BODY_BYTES": "10485760",
        "LIGHTRETRIEVER_WATCH_S": "0.5",
        "LIGHTRETRIEVER_LOG_LEVEL": "warning",
        "TOKEN": None,
    }
    assert [volume["name"] for volume in pod["volumes"]] == ["bundle", "tmp", "keys"]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/bundle", "/tmp", "/keys"]


def test_two_services_search_a_cluster_of_three_nodes() -> None:
    deployment = render(ON_CLUSTER)["Deployment"]
    assert (deployment["spec"]["replicas"], NODES["replicas"]) == (2, 3)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {item["name"].removeprefix("LIGHTRETRIEVER_").lower(): item for item in container["env"]}
    values = {name: item.get("value", "from the secret") for name, item in variables.items()}
    settings = Settings.model_validate(values)
    assert settings.backend == "opensearch"
    assert settings.opensearch_url == f"https://{NODES['masterService']}:9200"
    assert NODES["masterService"] == f"{NODES['clusterName']}-{NODES['nodeGroup']}"  # as the chart names the Service
    assert settings.opensearch_password == "from the secret"
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "cluster")
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "cluster")
    (file,) = volume["secret"]["items"]
    assert str(settings.opensearch_ca_file) == f"{mount['mountPath']}/{file['path']}"


def test_what_manifests_name_in_each_other_is_there() -> None:
    manifests, fixed = render(EVERYTHING), render(CLAIM)
    deployment, service = manifests["Deployment"], manifests["Service"]
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    budget = manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"], budget):
        assert selector.items() <= labels
    monitor = manifests["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    # Autoscaling and a fixed number exclude each other.
    assert manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert fixed["Deployment"]["spec"]["replicas"] == 2
    assert "HorizontalPodAutoscaler" not in fixed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "There is no bundle"),
        ({"bundle": {"claim": "a", "image": "b"}}, "both given"),
        ({**CLAIM, "replicas": 3}, "additional properties 'replicas' not allowed"),
        ({**CLAIM, "settings": {"Deadline": 1}}, "Deadline"),
        ({"bundle": {"claim": "a", "subPath": "/bundle"}}, "subPath"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str) -> None:
    run = helm("template", "search", CHART, values=values)
    assert run.returncode != 0
    assert message in run.stderr


def test_every_value_is_in_the_schema_and_versions_agree() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, part in values.items():
        known = schema["properties"][name].get("properties")
        if isinstance(part, dict) and known is not None and name != "resources":
            assert set(known) == set(part), name
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == VERSION
