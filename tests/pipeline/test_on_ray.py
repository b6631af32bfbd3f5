"""The corpus encoded on a real Ray cluster of two nodes on this machine, from which a process or a node is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from lightretriever.artifacts.errors import RecipeError, ResumeError
from tests.faults.builds import files
from tests.pipeline.test_growing import COUNT, counts, write_recipe
from tests.support.commands import invoke, only, summary_of
from tests.support.encoded import kept_texts
from tests.support.recipes import change

pytestmark = pytest.mark.slow
STORE_BYTES = 80 * 2**20


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one processor each; the second may be removed."""
    pytest.importorskip("ray", reason="ray is not installed (make slow)")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else workers starve on a busy machine
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.second = cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("lost", ["process", "node"])
def test_a_cluster_that_loses_a_worker_makes_the_shards_of_one_process(tmp_path: Path, cluster: Any, lost: str) -> None:
    recipe = write_recipe(tmp_path, "learned")
    change(recipe, {"encode.shard_size": 4})
    whole = summary_of(*only("encode"), recipe, "--work", tmp_path / "whole")
    command = [sys.executable, "-m", "lightretriever.service.cli", "build", str(recipe), "--ray", cluster.address]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as encode:
        encoded = tmp_path / "work" / "encode"
        while not kept_texts(encoded) or not (workers := working()):
            assert encode.poll() is None
            sleep(0.01)
        if lost == "process":
            os.kill(workers[0], signal.SIGKILL)
        else:
            cluster.remove_node(cluster.second, allow_graceful=False)
        assert kept_texts(encoded) < COUNT
        out, _ = encode.communicate()
    assert encode.returncode == 0
    assert f'"documents": {COUNT}' in out
    assert files(encoded) == files(tmp_path / "whole" / "encode")
    assert not list((tmp_path / "work").rglob("*.partial"))
    assert counts(summary_of(*only("encode"), recipe)) == (whole["documents"], 0, 0)


def working() -> list[int]:
    """The processes that encode a part now."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(b"ray::encode"):
                found.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found


def test_an_error_of_a_task_is_the_commands(tmp_path: Path, cluster: Any) -> None:
    recipe = write_recipe(tmp_path, "learned")
    assert counts(summary_of("build", recipe, "--ray", cluster.address))[1] == COUNT
    change(recipe, {"encode.top_k": 5})
    failed = invoke("build", recipe, "--ray", cluster.address).exception
    assert isinstance(failed, ResumeError)
    assert "top_k: 20 there, 5 now" in str(failed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray", "nowhere"], "--ray is 'nowhere', expected auto, HOST:PORT or ray://HOST:PORT."),
        (["--ray", "127.0.0.1:1"], "--ray is '127.0.0.1:1', where nothing answers"),
        (["--ray", "auto"], "--ray is 'auto', where no Ray cluster can be used"),
        (["--ray", "auto", "--from", "table"], "--ray encodes, and ends."),
    ],
)
def test_a_cluster_that_can_not_be_used_gets_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    pytest.importorskip("ray", reason="ray is not installed (make slow)")
    failed = invoke("build", write_recipe(tmp_path, "learned"), *options).exception
    assert isinstance(failed, RecipeError)
    assert str(failed).startswith(message)
    assert not (tmp_path / "work").exists()
