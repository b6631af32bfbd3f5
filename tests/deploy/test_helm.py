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

ROOT = Path(__file__).resolve().parents[2]
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
CHOICES = {"claim": CLAIM, "copy": COPY, "everything": EVERYTHING, "cluster": ON_CLUSTER}
OPENSHIFT_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
}
KUBERNETES = ("1.25.0", "1.31.0", kubernetes_validate.latest_version())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HELM is None, reason="there is no helm: run deploy/install/install_helm.py, or put it on PATH"),
]


def helm(*arguments: str | Path, values: dict[str, Any], home: Path) -> subprocess.CompletedProcess[str]:
    """Run Helm with `values`, and with `home` for what it wants to remember."""
    homes = {f"HELM_{kind}_HOME": str(home) for kind in ("CACHE", "CONFIG", "DATA")}
    command = [str(HELM), *map(str, arguments), "--values=-"]
    return subprocess.run(command, input=json.dumps(values), env=homes, capture_output=True, text=True)


def render(values: dict[str, Any], home: Path, version: str = KUBERNETES[-1]) -> dict[str, dict[str, Any]]:
    """The manifests by kind."""
    run = helm("template", "search", CHART, "--namespace=prod", f"--kube-version={version}", values=values, home=home)
    assert run.returncode == 0, run.stderr
    manifests = [manifest for manifest in yaml.safe_load_all(run.stdout) if manifest]
    assert len({manifest["kind"] for manifest in manifests}) == len(manifests)
    return {manifest["kind"]: manifest for manifest in manifests}


@pytest.mark.parametrize("values", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_it(values: dict[str, Any], version: str, tmp_path: Path) -> None:
    manifests = render(values, tmp_path, version)
    assert {"Deployment", "Service", "PodDisruptionBudget"} <= set(manifests)
    for kind, manifest in manifests.items():
        if kind != "ServiceMonitor":  # the Prometheus operator's
            kubernetes_validate.validate(manifest, version, strict=True)


def test_a_collection_has_the_public_paths_alone(tmp_path: Path) -> None:
    values = {**CLAIM, "ingress": {"enabled": True, "collections": ["notes", "shop"]}}
    (rule,) = render(values, tmp_path)["Ingress"]["spec"]["rules"]
    paths = {path["path"]: path["pathType"] for path in rule["http"]["paths"]}
    own = {path for path, kind in paths.items() if kind == "Prefix" and not path.startswith("/collections")}
    for name in ("notes", "shop"):
        below = {path.removeprefix(f"/collections/{name}") for path in paths if path.startswith(f"/collections/{name}")}
        assert below == own | {"", "/"}
    assert paths["/collections"] == paths["/collections/notes"] == paths["/collections/notes/"] == "Exact"


def container_of(manifests: dict[str, Any]) -> dict[str, Any]:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def refused_by_openshift(pod: dict[str, Any]) -> list[str]:
    """What OpenShift's usual constraints, restricted-v2, refuse; the namespace's users begin at 1,000,680,000."""
    given, users = pod.get("securityContext", {}), range(1_000_680_000, 1_000_690_000)
    refused = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    volumes = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    refused += sorted(volumes - OPENSHIFT_VOLUMES)
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = {**given, **container.get("securityContext", {})}
        refused += [name for name in ("runAsUser", "fsGroup") if own.get(name, users[0]) not in users]
        refused += [name for name in ("allowPrivilegeEscalation", "privileged") if own.get(name)]
        if own.get("seccompProfile", {"type": "RuntimeDefault"}) != {"type": "RuntimeDefault"}:
            refused.append("seccompProfile")
        capabilities = own.get("capabilities", {})
        if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"} or capabilities.get("drop", ["ALL"]) != ["ALL"]:
            refused.append("capabilities")
        refused += ["hostPort" for port in container.get("ports", []) if port.get("hostPort")]
    return refused


@pytest.mark.parametrize("values", CHOICES.values(), ids=CHOICES)
def test_openshift_takes_the_pods_without_a_user(values: dict[str, Any], tmp_path: Path) -> None:
    """It gives each namespace a range of users, and refuses a pod that names another."""
    pod = render(values, tmp_path)["Deployment"]["spec"]["template"]["spec"]
    assert set(refused_by_openshift(pod)) == {"runAsUser"}
    chart = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert "podSecurityContext: {runAsUser: null, runAsGroup: null}" in chart
    without = {**values, "podSecurityContext": {"runAsUser": None, "runAsGroup": None}}
    pod = render(without, tmp_path)["Deployment"]["spec"]["template"]["spec"]
    assert refused_by_openshift(pod) == []
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("values", "scheme"),
    [({}, "http"), ({"settings": {"tls_certificate_file": "/tls/tls.crt"}}, "https"), ({"scheme": "https"}, "https")],
)
def test_who_asks_for_health_and_metrics_speaks_as_the_service_does(
    tmp_path: Path, values: dict[str, Any], scheme: str
) -> None:
    manifests = render({**CLAIM, **values, "serviceMonitor": {"enabled": True}}, tmp_path)
    container = container_of(manifests)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == scheme.upper()
    assert manifests["ServiceMonitor"]["spec"]["endpoints"][0]["scheme"] == scheme


def test_the_public_address_has_the_public_paths_alone(tmp_path: Path) -> None:
    assert {"Ingress", "NetworkPolicy"}.isdisjoint(render(CLAIM, tmp_path))
    manifests = render(EVERYTHING, tmp_path)
    (rule,) = manifests["Ingress"]["spec"]["rules"]
    paths = {path["path"]: path["pathType"] for path in rule["http"]["paths"]}
    assert paths.pop("/") == "Exact"
    assert set(paths) == {"/search", "/encode", "/documents", "/terms", "/info", "/openapi.json"}
    policy = manifests["NetworkPolicy"]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http"}], "from": EVERYTHING["networkPolicy"]["from"]}]  # type: ignore[index]
    assert policy["egress"] == []
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["bundle", "tmp", "keys"]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/bundle", "/tmp", "/keys"]


def test_kubernetes_takes_an_image_volume(tmp_path: Path) -> None:
    deployment = render(VOLUME, tmp_path)["Deployment"]
    kubernetes_validate.validate(deployment, KUBERNETES[-1], strict=True)
    pod = deployment["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    image = {"reference": "registry.example/bundle:7", "pullPolicy": "IfNotPresent"}
    assert pod["volumes"][0] == {"name": "bundle", "image": image}
    assert pod["containers"][0]["volumeMounts"][0]["subPath"] == "bundle"


@pytest.mark.parametrize("values", [*CHOICES.values(), VOLUME], ids=[*CHOICES, "volume"])
def test_helm_finds_nothing_to_complain_about(values: dict[str, Any], tmp_path: Path) -> None:
    run = helm("lint", CHART, "--strict", values=values, home=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr


def test_containers_have_no_rights(tmp_path: Path) -> None:
    pod = render(COPY, tmp_path)["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "\nUSER 10001:10001\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    pod = render({**COPY, "securityContext": {"readOnlyRootFilesystem": False}}, tmp_path)["Deployment"]["spec"]
    for container in [*pod["template"]["spec"]["initContainers"], *pod["template"]["spec"]["containers"]]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_bundle_is_mounted_where_the_image_looks_for_it(tmp_path: Path) -> None:
    from_claim = render(CLAIM, tmp_path)["Deployment"]["spec"]["template"]["spec"]
    mount = {"name": "bundle", "mountPath": "/bundle", "readOnly": True}
    assert from_claim["containers"][0]["volumeMounts"][0] == {**mount, "subPath": "2026/bundle"}
    assert from_claim["volumes"][0]["persistentVolumeClaim"] == {"claimName": "corpus", "readOnly": True}
    copied = render(COPY, tmp_path)["Deployment"]["spec"]["template"]["spec"]
    assert copied["containers"][0]["volumeMounts"][0] == mount
    assert copied["volumes"][0]["emptyDir"] == {"sizeLimit": "4Gi"}
    (init,) = copied["initContainers"]
    assert (init["image"], init["command"]) == (COPY["bundle"]["image"], ["cp", "-R", "/bundle/.", "/target/"])


def test_a_container_has_probes_a_port_and_its_own_command_or_another(tmp_path: Path) -> None:
    (container,) = render(CLAIM, tmp_path)["Deployment"]["spec"]["template"]["spec"]["containers"]
    paths = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 300
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert "args" not in container
    args = ["serve", "notes=/bundle/notes", "shop=/bundle/shop", "--host", "0.0.0.0"]
    assert container_of(render({**CLAIM, "args": args}, tmp_path))["args"] == args


def test_settings_reach_the_service_as_they_are_written(tmp_path: Path) -> None:
    (container,) = render(EVERYTHING, tmp_path)["Deployment"]["spec"]["template"]["spec"]["containers"]
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert values == {
        "LIGHTRETRIEVER_MAX_BODY_BYTES": "10485760",
        "LIGHTRETRIEVER_WATCH_S": "0.5",
        "LIGHTRETRIEVER_LOG_LEVEL": "warning",
        "TOKEN": None,
    }


def test_two_services_search_a_cluster_of_three_nodes(tmp_path: Path) -> None:
    deployment = render(ON_CLUSTER, tmp_path)["Deployment"]
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


def test_autoscaling_and_a_fixed_number_exclude_each_other(tmp_path: Path) -> None:
    scaled = render(EVERYTHING, tmp_path)
    assert "replicas" not in scaled["Deployment"]["spec"]
    assert (
        scaled["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == scaled["Deployment"]["metadata"]["name"]
    )
    fixed = render(CLAIM, tmp_path)
    assert fixed["Deployment"]["spec"]["replicas"] == 2
    assert "HorizontalPodAutoscaler" not in fixed


def test_selectors_meet_the_pods(tmp_path: Path) -> None:
    manifests = render(EVERYTHING, tmp_path)
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    monitor = manifests["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= manifests["Service"]["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == manifests["Service"]["spec"]["ports"][0]["name"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "There is no bundle"),
        ({"bundle": {"claim": "a", "image": "b"}}, "both given"),
        ({**CLAIM, "replicas": 3}, "additional properties 'replicas' not allowed"),
        ({**CLAIM, "settings": {"Deadline": 1}}, "Deadline"),
        ({"bundle": {"claim": "a", "subPath": "/bundle"}}, "subPath"),
        ({**CLAIM, "service": {"port": 0}}, "port"),
    ],
    ids=["no bundle", "two bundles", "unknown", "setting", "path", "port"],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = helm("template", "search", CHART, values=values, home=tmp_path)
    assert run.returncode != 0
    assert message in run.stderr


def test_every_value_is_in_the_schema_and_explained(tmp_path: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, part in values.items():
        known = schema["properties"][name].get("properties")
        if isinstance(part, dict) and known is not None and name != "resources":
            assert set(known) == set(part), name


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"]
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
