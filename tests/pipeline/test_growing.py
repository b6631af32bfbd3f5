"""A corpus that changes, and one that several machines encode: only new texts are read, and the result is that of a
fresh build by one process."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fastapi.testclient import TestClient
from safetensors.torch import load_file, save_file

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.pipeline.encode import encode_corpus
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
from tests.faults.builds import content, files
from tests.support import recipes
from tests.support.biencoder import save_biencoder
from tests.support.commands import invoke, run, summary_of
from tests.support.encoded import encoded_rows
from tests.support.models import save_model, write_corpus
from tests.support.sparse_model import save_sparse_model

COUNT = 60
SETTINGS = EncodeRecipe(max_length=48, top_k=20, shard_size=8)
NEW = {"_id": "new", "title": "Zebra crossing", "text": "A zebra crosses the road over the network of music files."}
KINDS = ("learned", "fitted", "distil", "expand", "paired")


def write_recipe(folder: Path, kind: str) -> Path:
    """A recipe of every kind of encoder and of table, over 60 documents in shards of 8."""
    bert = save_biencoder(folder / "bert") if kind in ("distil", "expand", "paired") else None
    sections: dict[str, Any] = {
        "encode": {"shard_size": 8} | ({} if bert else {"max_length": 48, "top_k": 20}),
        "index": {"factory": "Flat"},
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe of learned impacts that was built. Read only."""
    folder = tmp_path_factory.mktemp("finished")
    run("build", write_recipe(folder, "learned"))
    return folder


@pytest.fixture
def built(finished: Path, tmp_path: Path) -> Path:
    """The recipe in a copy of that folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(finished), str(tmp_path)))
    return recipe


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
def test_a_changed_corpus_is_built_from_what_was_encoded_to_the_bytes_of_a_fresh_build(
    tmp_path: Path, kind: str
) -> None:
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
    other = ["--work", tmp_path / "fresh", "--output", tmp_path / "bundle2"]
    run("build", recipe, "--limit", 20, *other)
    assert content(tmp_path / "trial") == content(tmp_path / "bundle2")


def test_what_is_known_of_a_text_is_taken_and_not_made_again(backbone: Backbone, tmp_path: Path) -> None:
    """The kept vectors are changed on disk, which shows where they come from."""
    encoders = Encoders(LanguageModel.of(backbone, SETTINGS), None, SETTINGS)
    corpus = EncodedCorpus.of(Corpus(write_corpus(tmp_path / "corpus.jsonl", 20)), tmp_path / "encoded")
    encode_corpus(encoders, corpus, tmp_path / "work")
    (file,) = (tmp_path / "work").glob("run-*/dense.npy")
    np.save(file, np.ones_like(np.load(file)))
    lines = write_corpus(tmp_path / "corpus.jsonl", 23).read_text("utf-8").splitlines()
    (tmp_path / "corpus.jsonl").write_text("".join(f"{line}\n" for line in reversed(lines)), encoding="utf-8")
    corpus = EncodedCorpus.of(Corpus(tmp_path / "corpus.jsonl"), tmp_path / "encoded")
    made = encode_corpus(encoders, corpus, tmp_path / "work")
    assert counts(made.facts) == (20, 3, 0)
    ones = (encoded_rows(tmp_path / "work").dense == 1).all(axis=1)
    np.testing.assert_array_equal(ones, [False] * 3 + [True] * 20)


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


def test_nothing_is_reused_of_another_model_at_the_same_place_or_with_other_settings(
    built: Path, tmp_path: Path
) -> None:
    recipe, settings = built, yaml.safe_load(built.read_text())

    def made() -> dict[str, str]:
        return {name: digest for name, digest in files(tmp_path / "work").items() if not name.startswith("encoded/")}

    before = made()

    def refused(message: str) -> None:
        result = invoke("build", recipe, "--overwrite")
        assert isinstance(result.exception, ResumeError)
        assert message in str(result.exception)
        assert made() == before

    change(tmp_path / "corpus.jsonl")
    for key, value in (("max_length", 32), ("top_k", 10), ("shard_size", 16), ("batch_tokens", 512)):
        recipe.write_text(yaml.safe_dump(settings | {"encode": settings["encode"] | {key: value}}))
        refused(f"{key}: ")
    recipe.write_text(yaml.safe_dump(settings))
    tokenizer = tmp_path / "llama" / "tokenizer.json"
    whole = tokenizer.read_text("utf-8")
    tokenizer.write_text(whole.replace('"add_prefix_space": false', '"add_prefix_space": true'), encoding="utf-8")
    refused("fingerprint: ")
    tokenizer.write_text(whole, encoding="utf-8")
    weights = tmp_path / "llama" / "model.safetensors"
    save_file({name: torch.roll(one, 1) for name, one in load_file(weights).items()}, weights, {"format": "pt"})
    refused("fingerprint: ")


def test_a_service_that_runs_takes_over_the_new_bundle(built: Path, tmp_path: Path) -> None:
    settings = Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0)
    with TestClient(create_app(tmp_path / "bundle", settings)) as client:
        assert client.get("/documents/new").status_code == 404
        change(tmp_path / "corpus.jsonl")
        run("build", built, "--overwrite")
        assert client.portal is not None
        holder: EngineHolder = client.app.state.collections.first  # type: ignore[attr-defined]
        assert client.portal.call(holder.reload)
        assert client.get("/documents/new").json()["fields"]["title"] == NEW["title"]
