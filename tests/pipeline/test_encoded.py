"""The encoded corpus: its format, and what is read again of a changed corpus."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import CorpusError, ResumeError
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.encode import encode_corpus, encode_texts
from lightretriever.artifacts.pipeline.encoded import FORMAT, EncodedCorpus
from lightretriever.artifacts.pipeline.encoders import Encoders, resolved
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.pipeline.rows import ImpactRows, ModelRows, TermCounts
from lightretriever.artifacts.pipeline.store import STORE_FORMAT, TextStore, text_digest, text_digests
from lightretriever.artifacts.reports import ProgressBar
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from tests.support.commands import ROOT, only, run
from tests.support.models import write_corpus
from tests.support.recipes import encoded_rows, files, keep_texts, kept_texts, write_recipe
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

ENGLISH = Vocabulary(None, "english")
LINES = [
    {"_id": document.id, "title": document.title, "text": document.text, "year": number}
    for number, document in enumerate(tiny_documents(40))
]


def write(folder: Path, lines: Sequence[Any], **settings: Any) -> Corpus:
    path = folder / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return Corpus(path, **settings)


def test_the_columns_have_what_the_corpus_has(tmp_path: Path) -> None:
    bad = {"_id": "bad", "text": 3}
    corpus = write(tmp_path, [*LINES[:20], bad, {"_id": "ü", "text": "naïve"}, *LINES[20:]], skip_bad=True)
    encoded = EncodedCorpus.of(corpus, tmp_path / "encoded")
    documents = list(Corpus(corpus.path, skip_bad=True))
    assert list(encoded) == documents
    assert (len(encoded), encoded.facts["format"], encoded.corpus_sha256) == (41, FORMAT, file_sha256(corpus.path))
    assert (encoded.skipped.count, len(encoded.skipped.reasons)) == (1, 1)
    assert [document.id for document in encoded.documents(19, 22)] == [LINES[19]["_id"], "ü", LINES[20]["_id"]]
    assert encoded.document(40) == documents[40]
    texts = [document.full_text for document in documents]
    assert [row.tobytes() for row in encoded.digests] == [text_digest(text) for text in texts]
    counts, expected = encoded.terms(ENGLISH), TermCounts.of(ENGLISH.terms_of(texts))
    assert counts.names == expected.names
    np.testing.assert_array_equal(counts.terms.values, expected.terms.values)
    indptr, terms, found = counts.sorted(0, len(counts))
    for text, (start, end) in zip(texts, pairwise(indptr.tolist()), strict=True):
        named = dict(zip([counts.names[term] for term in terms[start:end]], found[start:end].tolist(), strict=True))
        assert named == Counter(*ENGLISH.terms_of([text]))
        assert (np.diff(terms[start:end]) > 0).all()


def test_another_format_is_not_read(tmp_path: Path) -> None:
    encoded = EncodedCorpus.of(write(tmp_path, LINES), tmp_path / "encoded")
    facts = encoded.folder / "corpus.json"
    facts.write_text(facts.read_text().replace(f'"format":{FORMAT}', '"format":0'))
    (encoded.folder / "raw").write_bytes(b"")
    again = EncodedCorpus.of(write(tmp_path, LINES[1:]), tmp_path / "encoded")
    assert [document.id for document in again] == [line["_id"] for line in LINES[1:]]
    assert [folder.name for folder in (tmp_path / "encoded").iterdir()] == [again.folder.name]


def test_processes_that_share_a_folder_have_the_same_columns(tmp_path: Path) -> None:
    corpus, folder = write(tmp_path, LINES), tmp_path / "encoded"
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: EncodedCorpus.of(corpus, folder, shared=True), range(4)))
    assert {one.folder for one in found} == set(folder.iterdir())
    assert all(list(one) == list(corpus) for one in found)
    EncodedCorpus.of(write(tmp_path, LINES[1:]), folder, shared=True)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "size"), [("texts.npy", 5), ("texts.npy", 160), ("raw", 100), ("at.npy", 0), ("corpus.json", 3)]
)
def test_a_damaged_column_is_named(tmp_path: Path, name: str, size: int) -> None:
    encoded = EncodedCorpus.of(write(tmp_path, LINES), tmp_path / "encoded")
    os.truncate(encoded.folder / name, size)
    with raises(ResumeError):
        EncodedCorpus.open(encoded.folder)


def test_bad_lines_and_empty_corpora_leave_nothing(tmp_path: Path) -> None:
    for lines in ([*LINES, LINES[3]], []):
        with raises(CorpusError, naming="corpus.jsonl"):
            EncodedCorpus.of(write(tmp_path, lines), tmp_path / "encoded")
        assert list((tmp_path / "encoded").iterdir()) == []


PLAN = {"dimension": 4, "shard_size": 3}


def made(texts: npt.NDArray[np.uint8]) -> ModelRows:
    """What a model could have made of texts, which depends on their digests alone."""
    rows = [(np.arange(text[0] % 4, dtype=np.int32), text[: text[0] % 4].astype(np.uint16) + 1) for text in texts]
    return ModelRows(texts[:, :4].astype(np.float16), ImpactRows.of(rows), (texts[:, 5] % 2).astype(bool))


def assert_equal(found: ModelRows, expected: ModelRows) -> None:
    for column in ("dense", "sparse.terms.at", "sparse.terms.values", "sparse.impacts", "cut"):
        np.testing.assert_array_equal(*map(attrgetter(column), (found, expected)), strict=True)


def add(store: TextStore, *parts: npt.NDArray[np.uint8]) -> None:
    for part in parts:
        store.add(part, made(part))


def test_texts_of_several_processes_end_with_the_bytes_of_one(tmp_path: Path) -> None:
    texts = text_digests([f"text {number}" for number in range(11)])
    corpus = np.concatenate([texts[3:], texts[:3], texts[5:6]])
    grown, fresh = (TextStore.begin(tmp_path / name, PLAN) for name in ("grown", "fresh"))
    with raises(ResumeError):
        grown.check(corpus)
    add(grown, texts[:4], texts[4:5])
    add(grown, texts[5:8])
    assert grown.has(texts[[7, 9, 0]]).tolist() == [True, False, True]
    with raises(ResumeError):
        grown.rows(corpus)
    with raises(ResumeError):
        grown.join(corpus)
    add(grown, texts[7:], text_digests(["another"]))  # one of them twice
    assert grown.others(corpus) == 1
    assert grown.counts(corpus) == (len(made(corpus).sparse.impacts), int(made(corpus).cut.sum()))
    assert_equal(grown.rows(corpus), made(corpus))  # joined, and the other is kept
    assert grown.others(corpus) == 1
    add(fresh, texts[3:], texts[:3])
    for store in (grown, fresh):
        store.join(corpus)
    for store in (grown, fresh, TextStore(tmp_path / "grown")):
        assert_equal(store.rows(corpus), made(corpus))
        assert_equal(store.rows(corpus[[7, 0, 3]]), made(corpus[[7, 0, 3]]))
    assert files(tmp_path / "grown") == files(tmp_path / "fresh")
    assert {name.partition("-")[0] for name in files(tmp_path / "fresh")} == {"plan.json", "run"}


@pytest.mark.parametrize(("seconds", "count"), [(0.0, 3), (60.0, 1)])
def test_a_file_holds_some_seconds_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, count: int
) -> None:
    monkeypatch.setattr("lightretriever.artifacts.pipeline.encode._FILE_S", seconds)
    texts, store = text_digests(map(str, range(40))), TextStore.begin(tmp_path, {**PLAN, "shard_size": 64})
    with ProgressBar("encode", total=40, unit="texts") as progress:
        encode_texts(store, texts, lambda rows: made(texts[rows]), progress, alone=True)
    assert len(list(tmp_path.glob("run-*"))) == count
    store.join(texts)
    assert_equal(store.rows(texts), made(texts))


@pytest.mark.parametrize("damaged", ["texts.npy", "dense.npy", "cut.npy"])
def test_a_damaged_file_is_named(tmp_path: Path, damaged: str) -> None:
    texts, store = text_digests(map(str, range(8))), TextStore.begin(tmp_path / "store", PLAN)
    add(store, texts)
    (source,) = store.path.glob("run-*")
    os.truncate(source / damaged, 100)
    with raises(ResumeError, naming=source.name):
        again = TextStore.begin(tmp_path / "store", PLAN)
        again.join(texts)
        again.rows(texts)


def test_nothing_is_a_corpus_too(tmp_path: Path) -> None:
    """As the sentences of a corpus that has none."""
    store, none = TextStore.begin(tmp_path / "store", PLAN), text_digests([])
    store.join(none)
    assert len(store.rows(none)) == 0


def test_runs_of_another_plan_are_not_found(tmp_path: Path) -> None:
    """As of machines with other versions that share a folder."""
    texts = text_digests(map(str, range(8)))
    own, other = (TextStore.begin(tmp_path / name, {**PLAN, "software": name}) for name in ("own", "other"))
    add(own, texts[:5])
    add(other, texts[5:])
    (folder,) = other.path.glob("run-*")
    shutil.copytree(folder, own.path / folder.name)
    assert TextStore(own.path).has(texts).tolist() == [True] * 5 + [False] * 3


def test_a_store_keeps_its_own_plan_whatever_another_has_begun(tmp_path: Path) -> None:
    store = TextStore.begin(tmp_path, PLAN)
    (tmp_path / "plan.json").write_text('{"dimension": 5}')
    assert store.plan == {"format": STORE_FORMAT, **PLAN}
    with raises(ResumeError, naming="shard_size"):
        TextStore.begin(tmp_path, PLAN)


class Growing(Corpus):
    """A corpus that another program still writes."""

    def __iter__(self) -> Iterator[Document]:
        yield from super().__iter__()
        with self.path.open("a") as file:
            file.write(json.dumps({"_id": "more", "text": "more"}) + "\n")


def test_a_corpus_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    growing = Growing(write(tmp_path, LINES).path)
    with raises(CorpusError, naming="corpus.jsonl"):
        EncodedCorpus.of(growing, tmp_path / "encoded")
    assert list((tmp_path / "encoded").iterdir()) == []
    assert len(EncodedCorpus.of(Corpus(growing.path), tmp_path / "encoded")) == len(LINES) + 1


def test_files_of_others_stay(tmp_path: Path) -> None:
    """A work directory may be a folder that has other files as well."""
    EncodedCorpus.of(write(tmp_path, LINES), tmp_path / "encoded")
    mine = [tmp_path / "encoded" / "notes.txt", tmp_path / "download.partial"]
    left = [tmp_path / "tables" / f"{name}.{'0123456789abcdef' * 2}.partial" for name in ("plan.json", "terms")]
    left[1].mkdir(parents=True)
    for file in (*mine, left[0], left[1] / "names.json"):
        file.write_text("")
    with work_lock(tmp_path):
        EncodedCorpus.of(write(tmp_path, LINES[:3]), tmp_path / "encoded")
    assert [file.exists() for file in (*mine, *left)] == [True, True, False, False]


SETTINGS = EncodeRecipe(max_length=48, top_k=20, batch_tokens=256, shard_size=8)


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
def test_killed_over_a_changed_corpus_and_run_again_it_ends_byte_identical(model_folder: Path, tmp_path: Path) -> None:
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
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
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
    (piece,) = work.glob("run-*")
    shutil.copytree(piece, piece.with_name(f"{piece.name}.{'0' * 32}.partial"))
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
