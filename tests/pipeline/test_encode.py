import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.pipeline.encode import encode_corpus
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.encoders import Encoders, resolved
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.store import TextStore
from tests.faults.builds import files
from tests.support.commands import only, run
from tests.support.encoded import encoded_rows, keep_texts, kept_texts
from tests.support.models import write_corpus
from tests.support.recipes import write_recipe
from tests.support.tiny import tiny_documents

SETTINGS = EncodeRecipe(max_length=48, top_k=20, batch_tokens=256, shard_size=8)
REPOSITORY = Path(__file__).resolve().parents[2]


def test_batched_encoding_equals_one_document_at_a_time_by_the_formulas(any_backbone: Backbone, tmp_path: Path) -> None:
    documents = list(Corpus(write_corpus(tmp_path / "corpus.jsonl", 20)))
    corpus = EncodedCorpus.of(Corpus(tmp_path / "corpus.jsonl"), tmp_path / "encoded")
    encoders = Encoders(LanguageModel.of(any_backbone, SETTINGS), None, SETTINGS)
    encode_corpus(encoders, corpus, tmp_path / "work")
    made = encoded_rows(tmp_path / "work")
    for row, (document, (terms, impacts)) in enumerate(zip(documents, made.sparse, strict=True)):
        ids = any_backbone.frame(any_backbone.tokenizer.encode(document.full_text)[:46].tolist())
        with torch.inference_mode():
            hidden = any_backbone.decoder(input_ids=torch.tensor([ids]), use_cache=False)[0][0]
            weights = torch.log1p(torch.relu(hidden[1:-1] @ any_backbone.head.T)).amax(dim=0).numpy()
        dense = hidden[-1].numpy() / np.linalg.norm(hidden[-1].numpy())
        np.testing.assert_allclose(made.dense[row], dense, atol=1e-3)
        assert len(terms) == SETTINGS.top_k
        np.testing.assert_allclose(impacts, 100 * weights[terms], atol=0.51)
        assert impacts.min() >= np.sort(np.round(100 * weights))[-20] - 1  # the largest were kept


def test_documents_that_are_cut_are_counted(backbone: Backbone, tmp_path: Path) -> None:
    document = next(iter(Corpus(write_corpus(tmp_path / "corpus.jsonl", 12))))
    lengths = {}
    for count in range(1, 100):
        text = "a " * count
        lengths[len(backbone.tokenizer.encode(text.strip()))] = text
    room = SETTINGS.max_length - len(backbone.frame([]))
    texts = [lengths[room - 1], lengths[room], lengths[room + 1], "a " * 100_000, " " * 100_000 + "a"]
    encoder = LanguageModel.of(backbone, SETTINGS)
    cut = encoder.are_cut([replace(document, title="", text=text).full_text for text in texts])
    assert cut == [False, False, True, True, False]
    encoders = Encoders(encoder, None, SETTINGS)
    corpus = EncodedCorpus.of(Corpus(tmp_path / "corpus.jsonl"), tmp_path / "encoded")
    made = encode_corpus(encoders, corpus, tmp_path / "work")
    longer = sum(len(backbone.tokenizer.encode(one.full_text)) > room for one in Corpus(tmp_path / "corpus.jsonl"))
    assert made.facts["cut"] == encoded_rows(tmp_path / "work").cut.sum() == longer


@pytest.mark.slow
def test_killed_over_a_changed_corpus_and_started_again_it_ends_byte_identical(
    model_folder: Path, tmp_path: Path
) -> None:
    """A real process is killed by SIGKILL while it encodes what is new, twice, then finishes. Of a corpus that does not
    change see `tests.faults.test_stop`."""
    encode = {"max_length": 48, "top_k": 20, "batch_tokens": 256, "shard_size": 2}
    recipe = write_recipe(tmp_path, model_folder, documents=60, tasks={"web": ""}, encode=encode)
    command = [sys.executable, "-m", "lightretriever.service.cli", *only("encode"), str(recipe)]
    run(*only("encode"), recipe)
    added = [{"_id": f"new-{number}", "text": f"a new text {number}"} for number in range(41)]
    lines = (tmp_path / "corpus.jsonl").read_text("utf-8").splitlines()[5:]
    (tmp_path / "corpus.jsonl").write_text("\n".join([*map(json.dumps, added), *lines]), encoding="utf-8")

    for texts in (3, 7):  # it is killed once it has kept so many more
        before = kept_texts(tmp_path / "work" / "encode")
        with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL) as process:
            while kept_texts(tmp_path / "work" / "encode") < before + texts and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    run(*only("encode"), recipe)
    run(*only("encode"), recipe, "--work", tmp_path / "fresh")
    assert files(tmp_path / "work" / "encode") == files(tmp_path / "fresh" / "encode")


def test_what_a_stopped_run_left_half_made_is_gone(backbone: Backbone, tmp_path: Path) -> None:
    corpus = EncodedCorpus.of(Corpus(write_corpus(tmp_path / "corpus.jsonl", 20)), tmp_path / "encoded")
    encoders, work = Encoders(LanguageModel.of(backbone, SETTINGS), None, SETTINGS), tmp_path / "work"
    encode_corpus(encoders, corpus, work)
    whole = files(work)
    (folder,) = work.glob("run-*")
    shutil.copytree(folder, work / f"{folder.name}.0123.partial")
    keep_texts(work, 8)
    (piece,) = work.glob("run-*.npz")
    piece.with_name(f"{piece.name}.{'0' * 32}.partial").write_bytes(piece.read_bytes()[:-99])
    made = encode_corpus(encoders, corpus, work)
    assert [made.facts[name] for name in ("reused", "encoded", "removed")] == [8, 12, 0]
    assert files(work) == whole


def test_processes_that_encode_shards_make_together_what_one_makes(backbone: Backbone, tmp_path: Path) -> None:
    """As on a Ray cluster, whose processes share a work directory."""
    path = write_corpus(tmp_path / "corpus.jsonl", 60)
    settings = SETTINGS.model_copy(update={"batch_tokens": None})
    encoders = Encoders(LanguageModel.of(backbone, settings), None, settings)
    for reused in (0, 59):
        corpus = EncodedCorpus.of(Corpus(path), tmp_path / "encoded")
        whole = encode_corpus(encoders, corpus, tmp_path / f"whole{reused}")
        made = [encode_corpus(encoders, corpus, tmp_path / "work", shards=slice(one, None, 3)) for one in (1, 0, 2)]
        for key in ("documents", "terms", "cut", "shards"):
            assert sum(one.facts[key] for one in made) == whole.facts[key]
        assert sum(one.facts["reused"] for one in made) == reused
        TextStore(tmp_path / "work").join(corpus.digests)
        assert files(tmp_path / "work") == files(tmp_path / f"whole{reused}")
        path.write_text(path.read_text("utf-8") + '{"_id": "new", "text": "zebra music"}\n', "utf-8")
        path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[1:]), "utf-8")


def test_beside_bm25_a_model_gives_dense_vectors_alone(backbone: Backbone) -> None:
    settings = SETTINGS.model_copy(update={"impacts": "bm25", "top_k": None})
    encoder, learned = (LanguageModel.of(backbone, one) for one in (settings, SETTINGS))
    assert (encoder.has_sparse, encoder.encode_queries(["music"]).sparse) == (False, None)
    texts = [document.full_text for document in tiny_documents(20)]
    np.testing.assert_allclose(encoder.encode_documents(texts).dense, learned.encode_documents(texts).dense, atol=1e-3)


def test_an_adapter_says_what_the_sparse_leg_is_made_of(tmp_path: Path) -> None:
    """Vectors that follow a teacher come with BM25."""
    (tmp_path / "adapter").mkdir()
    file = tmp_path / "adapter" / "lightretriever.json"
    for settings, kind, other in (({}, "learned", "bm25"), ({"projection": True}, "bm25", "learned")):
        file.write_text(json.dumps(settings), encoding="utf-8")
        found = resolved(EncodeRecipe(), str(tmp_path / "adapter"))
        assert (found.impacts, found.top_k) == (kind, 128 if kind == "learned" else None)
        recipe = EncodeRecipe.model_validate({"impacts": other, "top_k": 64})
        asked = resolved(recipe, str(tmp_path / "adapter"))
        assert (asked.impacts, asked.top_k) == (other, 64)
