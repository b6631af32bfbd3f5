"""What is written comes back: order, ids, documents; and what must not be written is refused without a trace."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.documents.bounds import MAX_ID_BYTES
from lightretriever.artifacts.errors import BundleError, JavaError
from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import JavaObject, java_class
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from tests.lucene.support import Collection, named_query, rows, search
from tests.support.machine import full_disk
from tests.support.wordings import raises

Array = npt.NDArray[Any]

IDS = ["plain", "with space", "ümläut", "中文", "🦀 emoji 🏴‍☠️", 'quo"te\\', "new\nline", "nul\0byte", "\U0010ffff"]
IDS.append("a" * MAX_ID_BYTES)
TEXTS = [f'{{"_id": "{n}", "text": "{t}"}}'.encode() for n, t in enumerate([*IDS[:-1], "long 🦀 " * 5000])]


def kept(path: Path, ids: list[str], documents: list[bytes], arrays: tuple[Array, Array, Array]) -> ImpactIndex:
    """An open index of these documents."""
    with ImpactIndexWriter(path) as writer:
        writer.add(ids, documents, *arrays)
    return ImpactIndex.open(path)


def test_order_ids_and_documents_survive(index: ImpactIndex, collection: Collection) -> None:
    assert index.count == 1500
    assert index.ids() == collection.ids
    assert index.documents(np.arange(1500)) == collection.documents
    assert index.documents(np.array([], np.int64)) == []
    assert index.documents(np.array([9, 2, 9])) == [collection.documents[i] for i in (9, 2, 9)]
    assert [index.ordinal(name) for name in ("doc-00000", "doc-01499")] == [0, 1499]
    assert [index.ordinal(name) for name in ("doc-01500", "", "\ud800")] == [None, None, None]


def test_unicode_survives(tmp_path: Path) -> None:
    path = tmp_path / "ünïcode 🦀"
    with kept(path, IDS, TEXTS, rows(*[{1: 1}] * len(IDS))) as index:
        assert index.ids() == IDS
        assert index.documents(np.arange(len(IDS))) == TEXTS
        assert [index.ordinal(name) for name in IDS] == list(range(len(IDS)))


def test_the_index_is_one_segment_and_reading_writes_nothing(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    with ImpactIndex.open(written) as index:
        index.check()
    assert {path.name for path in written.iterdir()} == names
    segments = {re.split("[_.]", name)[1] for name in names if name.startswith("_")}
    assert len(segments) == 1
    assert {name for name in names if not name.startswith("_")} == {"segments_1"}


def test_order_survives_the_merge_of_many_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.sparse.writer._BUFFER_MB", 0.2)
    count = 6000
    ids = [f"{i * 7919 % count}" for i in range(count)]
    with ImpactIndexWriter(tmp_path / "merged") as writer:
        for start in range(0, count, 500):
            part = range(start, start + 500)
            impacts = rows(*[{i % 50: i % 9 + 1, 50 + i % 700: 3} for i in part])
            writer.add([ids[i] for i in part], [b"x" * 100 for _ in part], *impacts)
        assert len(list((tmp_path / "merged").glob("*.si"))) > 3
        assert writer.count == count
    with ImpactIndex.open(tmp_path / "merged") as index:
        assert index.ids() == ids
        assert len(list((tmp_path / "merged").glob("*.si"))) == 1
        ordinals, _ = search(index, *named_query({7: 1.0}), count)
        assert set(ordinals.tolist()) == {i for i in range(count) if i % 50 == 7}


def test_an_index_without_documents(tmp_path: Path) -> None:
    with kept(tmp_path / "none", [], [], rows()) as index:
        assert (index.count, index.ids(), index.ordinal("a")) == (0, [], None)
        assert len(search(index, *named_query({3: 1.0}), 5)[0]) == 0
        index.check()


@pytest.mark.parametrize(
    ("ids", "documents"), [(["a", "\ud800"], [b"", b""]), (["a", "b"], [b"", b"\xff"]), (["a", "a"], [b"", b""])]
)
def test_bad_batches_are_refused_without_a_trace(tmp_path: Path, ids: list[str], documents: list[bytes]) -> None:
    path = tmp_path / "bad"

    def write() -> None:
        with ImpactIndexWriter(path) as writer:
            writer.add(["before"], [b"before"], *rows({1: 1}))
            writer.add(ids, documents, *rows({1: 1}, {2: 2}))

    with raises(ValueError):
        write()
    assert not path.exists()


def test_an_exception_rolls_back(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()

    def write(path: Path) -> None:
        with ImpactIndexWriter(path) as writer:
            writer.add(["a"], [b"a"], *rows({1: 1}))
            raise KeyboardInterrupt

    for path in (given, tmp_path / "made"):
        with pytest.raises(KeyboardInterrupt):
            write(path)
    assert list(tmp_path.iterdir()) == [given]
    assert list(given.iterdir()) == []


def test_nothing_can_be_read_before_the_end(tmp_path: Path) -> None:
    writer = ImpactIndexWriter(tmp_path / "early")
    writer.add(["a"], [b"a"], *rows({1: 1}))
    with raises(BundleError, naming="org.apache.lucene.store.NativeFSLockFactory"):
        ImpactIndex.open(tmp_path / "early")
    writer.close()
    writer.close()
    writer.rollback()
    with ImpactIndex.open(tmp_path / "early") as index:
        assert index.count == 1
    with raises(ValueError):
        writer.add(["b"], [b"b"], *rows({1: 1}))


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("stays")
    with raises(BundleError):
        ImpactIndexWriter(tmp_path)
    assert (tmp_path / "precious").read_text() == "stays"
    with raises(JavaError):
        ImpactIndexWriter(tmp_path / "precious")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)

    def write() -> None:
        with ImpactIndexWriter(tmp_path / "full") as writer:
            for number in range(40):
                text = noise.integers(33, 126, 100_000).astype(np.uint8).tobytes()
                writer.add([str(number)], [text], *rows({1: 1}))

    with full_disk(300_000), raises(JavaError):
        write()
    assert not (tmp_path / "full").exists()


def test_a_missing_index_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"absent can't be opened .* build the bundle again"):
        ImpactIndex.open(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_documents_come_in_any_order_however_large_they_are(tmp_path: Path) -> None:
    """Java takes and gives some MiB at a time. Documents without terms or text keep their place."""
    texts = [bytes([ord("a") + number]) * (number % 3 * 5_000_000) for number in range(9)]
    arrays = rows({1: 1}, {2: 2, 3: 3}, {}, {1: 4}, {}, {}, {}, {}, {3: 5})
    with kept(tmp_path / "index", list("abcdefghi"), texts, arrays) as index:
        assert search(index, *named_query({1: 1.0, 3: 1.0}), 5)[0].tolist() == [8, 3, 1, 0]
        for wanted in ([], [8], [8, 0, 5], [2, 2, 1, 2, 0, 0], list(range(9))[::-1]):
            assert index.documents(np.array(wanted, np.int64)) == [texts[number] for number in wanted]


def test_the_ids_of_many_documents_are_whole_and_in_order(tmp_path: Path) -> None:
    count = 2 * 65_536 + 3
    ids = [f"ï{number}" for number in range(count)]
    with kept(tmp_path / "index", ids, [b"{}"] * count, rows(*[{0: 1}] * count)) as index:
        assert index.ids() == ids


COMMON = ["the", "of", "a", "and", "retrieval", "retrieving", "index", "indexes", "vector", "vectors", "engine"]
WORDS = [*COMMON, "quick", "fox", "running", "café", "naïve", "2021", "x-ray"]


def plain(hits: JavaObject) -> list[tuple[str, float]]:
    return [(hit.docid, hit.score) for hit in hits]


def assert_same_hits(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> None:
    """Anserini rounds to four decimals, and takes millionths off from the second of two equal scores on."""
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    np.testing.assert_allclose([score for _, score in ours], [score for _, score in theirs], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    random = np.random.default_rng(4)
    return {f"t{i:04}": " ".join(random.choice(WORDS, random.integers(0, 60))) for i in range(500)}


@pytest.fixture(scope="module")
def words_path(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "bm25"
    assert build_word_index(path, iter(texts), iter(texts.values())) == 500
    return path


@pytest.fixture
def words(words_path: Path) -> Iterator[WordIndex]:
    with WordIndex.open(words_path) as index:
        yield index


def test_impact_searcher_gives_the_same_hits(written: Path, index: ImpactIndex, collection: Collection) -> None:
    searcher = java_class("io.anserini.search.SimpleImpactSearcher")(str(written))
    assert searcher.get_total_num_docs() == 1500
    random = np.random.default_rng(8)
    for length in (1, 3, 10):
        counts = {int(term): int(random.integers(1, 4)) for term in random.integers(0, 200, length)}
        terms = java_class("java.util.HashMap")()
        for term, count in counts.items():
            terms.put(str(term), count)
        ordinals, scores = search(index, *named_query({term: float(count) for term, count in counts.items()}), 50)
        ours = [(collection.ids[o], s) for o, s in zip(ordinals.tolist(), scores.tolist(), strict=True)]
        assert plain(searcher.search(terms, 50)) == ours
    assert searcher.doc(7).get("id") == "doc-00007"
    searcher.close()


@pytest.mark.parametrize(
    "text",
    ["retrieval", "The quick foxes", "retrieval retrieval of VECTORS", "café 2021 x ray", "the of", "", "unheard"],
)
def test_bm25_gives_the_same_hits(words_path: Path, words: WordIndex, text: str) -> None:
    searcher = java_class("io.anserini.search.SimpleSearcher")(str(words_path))
    assert_same_hits(words.ranked(text, 40), plain(searcher.search(text, 40)))
    searcher.set_bm25(1.2, 0.75)
    assert_same_hits(words.ranked(text, 40, k1=1.2, b=0.75), plain(searcher.search(text, 40)))
    assert words.ranked(text, 10**12)[:40] == words.ranked(text, 40)
    searcher.close()
