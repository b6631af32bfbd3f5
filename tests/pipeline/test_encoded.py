"""The encoded corpus: its format, and what is read again of a changed corpus."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import CorpusError, DiskError, ResumeError
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.columns import text_digest, text_digests
from lightretriever.artifacts.pipeline.encoded import FORMAT, EncodedCorpus
from lightretriever.artifacts.pipeline.rows import ModelRows, TermCounts
from lightretriever.artifacts.pipeline.store import STORE_FORMAT, Part, TextStore
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.faults.builds import files
from tests.support.disk import full_disk
from tests.support.tiny import tiny_documents, train_tokenizer
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


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    train_tokenizer(tmp_path / "tokenizer.json", [document.text for document in tiny_documents(40)])
    return TextTokenizer.from_file(tmp_path / "tokenizer.json")


def test_the_columns_have_what_the_corpus_has(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    bad = {"_id": "bad", "text": 3}
    corpus = write(tmp_path, [*LINES[:20], bad, {"_id": "ü", "text": "naïve"}, *LINES[20:]], skip_bad=True)
    encoded = EncodedCorpus.of(corpus, tmp_path / "encoded")
    documents = list(Corpus(corpus.path, skip_bad=True))
    assert list(encoded) == documents
    assert (len(encoded), encoded.facts["format"], encoded.corpus_sha256) == (41, FORMAT, corpus.sha256())
    assert (encoded.skipped.count, len(encoded.skipped.reasons)) == (1, 1)
    assert encoded.ids(19, 22) == [LINES[19]["_id"], "ü", LINES[20]["_id"]]
    assert encoded.raws(20, 21) == [documents[20].raw]
    assert encoded.document(40) == documents[40]
    texts = [document.full_text for document in documents]
    assert [row.tobytes() for row in encoded.digests] == [text_digest(text) for text in texts]
    for found, ids in zip(encoded.tokens(tokenizer), tokenizer.encode_batch(texts), strict=True):
        np.testing.assert_array_equal(found, ids)
    for found, ids in zip(encoded.tokens(tokenizer, queries=True), tokenizer.as_queries(texts), strict=True):
        np.testing.assert_array_equal(tokenizer.known(found), ids)
    counts, expected = encoded.terms(ENGLISH), TermCounts.of(ENGLISH.terms_of(texts))
    assert counts.names == expected.names
    np.testing.assert_array_equal(counts.terms.values, expected.terms.values)
    indptr, terms, found = counts.sorted(0, len(counts))
    for text, (start, end) in zip(texts, pairwise(indptr.tolist()), strict=True):
        named = dict(zip([counts.names[term] for term in terms[start:end]], found[start:end].tolist(), strict=True))
        assert named == Counter(*ENGLISH.terms_of([text]))
        assert (np.diff(terms[start:end]) > 0).all()


def test_a_changed_corpus_takes_the_place_of_the_former_one(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    changed = [{"_id": "new", "text": "zebra music"}, *LINES[30:], *LINES[5:20], {**LINES[20], "text": "another"}]
    for folder, lines in (("grown", LINES), ("grown", changed), ("fresh", changed)):
        encoded = EncodedCorpus.of(write(tmp_path, lines), tmp_path / folder)
        encoded.tokens(tokenizer)
        encoded.terms(ENGLISH)
    assert files(tmp_path / "grown") == files(tmp_path / "fresh")


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
    ("name", "size"), [("texts", 5), ("texts", 160), ("raw", 100), ("ids", 3), ("raw.at", 80), ("ids.at", 0)]
)
def test_a_damaged_column_is_named(tmp_path: Path, name: str, size: int) -> None:
    encoded = EncodedCorpus.of(write(tmp_path, LINES), tmp_path / "encoded")
    os.truncate(encoded.folder / name, size)
    with raises(ResumeError):
        EncodedCorpus.open(encoded.folder)


def test_other_versions_of_the_libraries_read_all_texts_again(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = EncodedCorpus.of(write(tmp_path, LINES), tmp_path / "encoded")
    encoded.tokens(tokenizer)
    encoded.terms(ENGLISH)
    columns = {folder.name for folder in encoded.folder.iterdir() if folder.is_dir()}
    monkeypatch.setattr("tokenizers.__version__", "0.0.1")
    monkeypatch.setattr("lightretriever.artifacts.sparse.vocabulary.lucene_version", lambda: "0.0.1")
    encoded.tokens(tokenizer)
    encoded.terms(ENGLISH)
    assert len({folder.name for folder in encoded.folder.iterdir() if folder.is_dir()} - columns) == 2


def test_bad_lines_and_empty_corpora_leave_nothing(tmp_path: Path) -> None:
    for lines in ([*LINES, LINES[3]], []):
        with raises(CorpusError, naming="corpus.jsonl"):
            EncodedCorpus.of(write(tmp_path, lines), tmp_path / "encoded")
        assert list((tmp_path / "encoded").iterdir()) == []


PLAN = {"dimension": 4, "shard_size": 3}


def made(texts: npt.NDArray[np.uint8]) -> ModelRows:
    """What a model could have made of texts, which depends on their digests alone."""
    rows = [(np.arange(text[0] % 4, dtype=np.int32), text[: text[0] % 4].astype(np.uint16) + 1) for text in texts]
    return ModelRows.of(texts[:, :4].astype(np.float16), rows, (texts[:, 5] % 2).astype(bool).tolist())


def assert_equal(found: ModelRows, expected: ModelRows) -> None:
    def columns(rows: ModelRows) -> list[npt.NDArray[Any]]:
        return [rows.dense, rows.terms.at, rows.terms.values, rows.impacts, rows.cut]

    for one, other in zip(columns(found), columns(expected), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def add(store: TextStore, *parts: npt.NDArray[np.uint8]) -> None:
    with store.adding() as added:
        for part in parts:
            added(part, made(part))


def test_texts_of_several_runs_are_one_and_end_with_the_bytes_of_one_run(tmp_path: Path) -> None:
    texts = text_digests([f"text {number}" for number in range(11)])
    corpus = np.concatenate([texts[3:], texts[:3], texts[5:6]])
    grown, fresh = (TextStore.begin(tmp_path / name, PLAN) for name in ("grown", "fresh"))
    with raises(ResumeError):
        grown.places()
    add(grown, texts[:4], texts[4:5])
    add(grown, texts[5:8])
    np.testing.assert_array_equal(grown.find(texts[[7, 9, 0]]) < 0, [False, True, False])
    assert_equal(grown.rows(grown.find(texts[[7, 0, 3, 4]])), made(texts[[7, 0, 3, 4]]))
    grown.finish(corpus, {"of": 1}, skipped=2, part=Part(1, 2))
    assert (grown.documents, grown.skipped, grown.missing_shards()) == ({"of": 1}, 2, [1, 2])
    assert list(map(str, grown.missing_parts())) == ["1/2", "2/2"]
    with raises(ResumeError):
        grown.places()
    add(grown, texts[8:], text_digests(["another"]))
    assert grown.others(corpus) == 1
    grown.finish(corpus, {"of": 1})
    add(fresh, texts[3:], texts[:3])
    fresh.finish(corpus, {"of": 1})
    for store in (grown, fresh, TextStore(tmp_path / "grown")):
        assert_equal(store.whole(), made(corpus))
        assert_equal(ModelRows.joined(list(store.batches())), made(corpus))
    assert files(tmp_path / "grown") == files(tmp_path / "fresh")
    assert {name.partition("-")[0] for name in files(tmp_path / "fresh")} == {
        "corpus.json",
        "plan.json",
        "run",
        "texts",
    }


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(("name", "size"), [("texts", 5 * 16 + 7), ("texts", 0), ("texts", None)])
def test_a_run_that_was_killed_or_damaged_counts_as_far_as_its_texts_are_whole(
    tmp_path: Path, name: str, size: int | None, finished: bool
) -> None:
    """The digests are written last: what is behind them in other columns is no text yet."""
    texts, store = text_digests(map(str, range(8))), TextStore.begin(tmp_path / "store", PLAN)
    add(store, texts)
    if finished:
        store.finish(texts, None)
    (folder,) = store.path.glob("run-*")
    if size is None:
        (folder / name).unlink()
    else:
        os.truncate(folder / name, size)
    again = TextStore.begin(tmp_path / "store", PLAN)
    whole = (size or 0) // 16
    np.testing.assert_array_equal(again.find(texts) < 0, [False] * whole + [True] * (8 - whole))
    add(again, texts[whole:])
    again.finish(texts, None)
    assert_equal(again.whole(), made(texts))
    assert len(list(again.path.glob("run-*"))) == 1


def test_a_full_disk_is_an_error_that_names_the_file_and_loses_nothing(tmp_path: Path) -> None:
    texts, store = text_digests(map(str, range(64))), TextStore.begin(tmp_path / "store", PLAN)
    with full_disk(300), raises(DiskError):
        add(store, *np.split(texts, 8))
    missing = store.find(texts) < 0
    assert 0 < missing.sum() < 64
    add(store, texts[missing])
    store.finish(texts, None)
    assert_equal(store.whole(), made(texts))


def test_runs_of_another_plan_are_not_found(tmp_path: Path) -> None:
    """As when the folders of two machines with other versions are copied together."""
    texts = text_digests(map(str, range(8)))
    own, other = (TextStore.begin(tmp_path / name, {**PLAN, "software": name}) for name in ("own", "other"))
    add(own, texts[:5])
    add(other, texts[5:])
    (folder,) = other.path.glob("run-*")
    shutil.copytree(folder, own.path / folder.name)
    assert (TextStore(own.path).find(texts) < 0).tolist() == [False] * 5 + [True] * 3


def test_a_store_keeps_its_own_plan_whatever_another_has_begun(tmp_path: Path) -> None:
    store = TextStore.begin(tmp_path, PLAN)
    (tmp_path / "plan.json").write_text('{"dimension": 5}')
    assert store.plan == {"format": STORE_FORMAT, **PLAN}
    with raises(ResumeError, naming="shard_size"):
        TextStore.begin(tmp_path, PLAN)


def test_impacts_of_counts_are_those_of_texts(tmp_path: Path) -> None:
    encoded = EncodedCorpus.of(write(tmp_path, LINES), tmp_path / "encoded")
    texts, counts = list(encoded.texts()), encoded.terms(ENGLISH)
    bm25 = Bm25Encoder.of(counts, ENGLISH, quantization=100, k1=0.9, b=0.4)
    for found, expected in zip(bm25.rows(counts, 7, 31), bm25.impacts(texts[7:31]), strict=True):
        np.testing.assert_array_equal(found, expected)


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
    left = tmp_path / "tables" / f"plan.json.{'0123456789abcdef' * 2}.partial"
    left.parent.mkdir()
    for file in (*mine, left):
        file.write_text("")
    with work_lock(tmp_path):
        EncodedCorpus.of(write(tmp_path, LINES[:3]), tmp_path / "encoded")
    assert [file.exists() for file in (*mine, left)] == [True, True, False]
