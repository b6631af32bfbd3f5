"""A corpus that changes, and one that several machines encode: only new texts are read, and the result is that of a
fresh build by one process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.errors import RecipeError, ResumeError
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from tests.support import recipes
from tests.support.biencoder import save_biencoder, save_sparse_model
from tests.support.commands import invoke, only, run, summary_of
from tests.support.models import save_model, write_corpus
from tests.support.recipes import content, encoded_rows, files, kept_texts

COUNT = 60
SETTINGS = EncodeRecipe(max_length=48, top_k=20, shard_size=8)
NEW = {"_id": "new", "title": "Zebra crossing", "text": "A zebra crosses the road over the network of music files."}
KINDS = ("learned", "fitted", "distil", "expand", "paired")


def write_recipe(folder: Path, kind: str) -> Path:
    """A recipe of every kind of encoder and of table, over 60 documents in shards of 8."""
    bert = save_biencoder(folder / "bert") if kind in ("distil", "expand", "paired") else None
    sections: dict[str, Any] = {
        "encode": {"shard_size": 8} | ({} if bert else {"max_length": 48, "top_k": 20}),
    }
    if bert:
        sections["distil"] = {"epochs": 1, "batch_size": 16, "held_out": 8}
    if kind == "expand":
        sections["expand"] = {"terms": 16}
    if kind == "paired":
        sections["sparse"] = {"path": str(save_sparse_model(folder / "splade", bert or folder)), "device": "cpu"}
    if kind == "fitted":
        sections |= {"kind": "language-model", "distil": {"epochs": 2, "batch_size": 8, "held_out": 8}}
    model = bert or save_model(folder / "llama", "llama")
    return recipes.write_recipe(folder, model, documents=COUNT, tasks={"web": ""}, **sections)


def change(corpus: Path) -> None:
    """A new first document, which moves all others; one that is gone, a new text, and another id for an old text."""
    lines = [json.loads(line) for line in corpus.read_text("utf-8").splitlines()]
    lines[20]["text"] += " This is new."
    lines[30]["_id"] = "another id"
    lines[40] = {**lines[41], "_id": "a copy"}
    corpus.write_text("".join(json.dumps(line) + "\n" for line in [NEW, *lines]), encoding="utf-8")


def counts(made: dict[str, Any]) -> tuple[int, int, int]:
    return made["reused"], made["encoded"], made["removed"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "learned" else pytest.mark.slow) for kind in KINDS]
)
def test_a_changed_corpus_is_built_from_what_was_encoded_to_a_fresh_build_s_bytes(tmp_path: Path, kind: str) -> None:
    recipe = write_recipe(tmp_path, kind)
    assert counts(summary_of("build", recipe)) == (0, COUNT, 0)
    assert counts(summary_of("build", recipe, "--overwrite")) == (COUNT, 0, 0)
    change(tmp_path / "corpus.jsonl")
    assert counts(summary_of("build", recipe, "--overwrite")) == (COUNT - 1, 2, 2)
    fresh = ["--work", tmp_path / "fresh", "--output", tmp_path / "bundle2"]
    assert counts(summary_of("build", recipe, *fresh)) == (0, COUNT + 1, 0)
    assert content(tmp_path / "bundle") == content(tmp_path / "bundle2")
    assert files(tmp_path / "work") == files(tmp_path / "fresh")


def test_a_trial_with_some_documents_costs_nothing_of_all(tmp_path: Path) -> None:
    """Neither vectors of documents nor those of sentences that the table is fitted to."""
    recipe = write_recipe(tmp_path, "distil")
    run("build", recipe)
    folders = ("encode", "tables/web/teacher")
    before = {folder: encoded_rows(tmp_path / "work" / folder).dense.tobytes() for folder in folders}
    trial = summary_of("build", recipe, "--limit", 20, "--output", tmp_path / "trial")
    assert (trial["documents"], *counts(trial)) == (20, 20, 0, 0)
    assert counts(summary_of("build", recipe, "--overwrite")) == (COUNT, 0, 0)
    for folder, vectors in before.items():
        assert encoded_rows(tmp_path / "work" / folder).dense.tobytes() == vectors
        assert len(list((tmp_path / "work" / folder).glob("run-*"))) == 1


def test_a_document_alone_has_the_vector_that_it_has_beside_others(any_backbone: Backbone, tmp_path: Path) -> None:
    """To the last bit on a CPU. In batches, which CUDA needs, the last bits depend on the texts beside it."""
    texts = [document.full_text for document in Corpus(write_corpus(tmp_path / "corpus.jsonl", 40))]
    encoder = LanguageModel.of(any_backbone, SETTINGS)
    whole = encoder.encode_documents(texts)
    batches = LanguageModel.of(any_backbone, SETTINGS.model_copy(update={"batch_tokens": 512})).encode_documents(texts)
    for place in (0, 7, 39):
        alone = encoder.encode_documents([texts[place]])
        np.testing.assert_array_equal(alone.dense[0], whole.dense[place])
        np.testing.assert_array_equal((alone.sparse or [])[0], (whole.sparse or [])[place])
    np.testing.assert_allclose(batches.dense, whole.dense, atol=1e-5)


def test_nothing_is_reused_of_another_model_at_the_same_place_or_with_other_settings(tmp_path: Path) -> None:
    def made() -> dict[str, str]:
        return {name: digest for name, digest in files(tmp_path / "work").items() if not name.startswith("encoded/")}

    recipe = write_recipe(tmp_path, "learned")
    run("build", recipe)
    before, encode = made(), yaml.safe_load(recipe.read_text())["encode"]

    def refused(message: str) -> None:
        result = invoke("build", recipe, "--overwrite")
        assert isinstance(result.exception, ResumeError)
        assert message in str(result.exception)
        assert made() == before

    change(tmp_path / "corpus.jsonl")
    for key, value in (("max_length", 32), ("top_k", 10), ("shard_size", 16), ("batch_tokens", 512)):
        recipes.change(recipe, {"encode": encode | {key: value}})
        refused(f"{key}: ")
    recipes.change(recipe, {"encode": encode})
    tokenizer = tmp_path / "llama" / "tokenizer.json"
    whole = tokenizer.read_text("utf-8")
    tokenizer.write_text(whole.replace('"add_prefix_space": false', '"add_prefix_space": true'), encoding="utf-8")
    refused("fingerprint: ")
    tokenizer.write_text(whole, encoding="utf-8")
    weights = tmp_path / "llama" / "model.safetensors"
    save_file({name: torch.roll(one, 1) for name, one in load_file(weights).items()}, weights, {"format": "pt"})
    refused("fingerprint: ")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one processor each; the second may be removed."""
    pytest.importorskip("ray", reason="ray is not installed (make slow)")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else workers starve on a busy machine
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.second = cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["process", "node"])
def test_a_cluster_that_loses_a_worker_makes_the_shards_of_one_process(tmp_path: Path, cluster: Any, lost: str) -> None:
    recipe = write_recipe(tmp_path, "learned")
    recipes.change(recipe, {"encode.shard_size": 4})
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


@pytest.mark.slow
def test_an_error_of_a_task_is_the_commands(tmp_path: Path, cluster: Any) -> None:
    recipe = write_recipe(tmp_path, "learned")
    assert counts(summary_of("build", recipe, "--ray", cluster.address))[1] == COUNT
    recipes.change(recipe, {"encode.top_k": 5})
    failed = invoke("build", recipe, "--ray", cluster.address).exception
    assert isinstance(failed, ResumeError)
    assert "top_k: 20 there, 5 now" in str(failed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray", "nowhere"], "--ray is 'nowhere', expected auto, HOST:PORT or ray://HOST:PORT."),
        (["--ray", "127.0.0.1:1"], "--ray is '127.0.0.1:1', where no Ray cluster can be used"),
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
