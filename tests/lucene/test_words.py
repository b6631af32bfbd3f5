"""BM25 over the words that an impact index has beside its impacts: that of an index of nothing but the same words."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.artifacts.errors import JavaError
from lightretriever.artifacts.sparse.bm25 import WordIndex, WordSearch, build_word_index, count_texts
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.tokenizer import document_text

from tests.lucene.support import Collection, query, random_collection

COUNT = 3000
FIELDS: dict[str, FieldKind] = {"share": "number"}
VOCABULARY = [
    *(
        "the",
        "of",
        "retrieval",
        "retrieving",
        "index",
        "indexes",
        "vectors",
        "engine",
        "fox",
        "running",
        "café",
        "naïve",
    ),
    *("2021", "x-ray", "λόγος", "日本語の文書", "🎵", "Größe", "don't", "a" * 300),
    *(f"word{i}" for i in range(60)),
]
QUERIES = [
    "retrieval",
    "The quick foxes",
    "retrieval retrieval of VECTORS",
    "café 2021 x-ray",
    "the of",
    "日本語 🎵",
    "🙂",
]
TEXTS = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12).map(" ".join) | st.text(max_size=30)


@pytest.fixture(scope="module")
def records() -> list[dict[str, object]]:
    """Some have no title, some no text, and some nothing but stop words."""
    random = np.random.default_rng(4)
    made: list[dict[str, object]] = []
    for i in range(COUNT):
        words = [" ".join(random.choice(VOCABULARY, random.integers(1, 40))) for _ in range(2)]
        title, text = {0: ("", words[0]), 1: (words[1], ""), 2: ("the", "of it")}.get(i % 17, (words[0], words[1]))
        made.append({"_id": f"doc-{i:05}", "title": title, "text": text, "share": i * 7 % COUNT})
    return made


@pytest.fixture(scope="module")
def impacts() -> Collection:
    return random_collection(count=COUNT, vocabulary=50, seed=3)


@pytest.fixture(scope="module")
def path(records: list[dict[str, object]], impacts: Collection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("both") / "lucene"
    documents = [json.dumps(record, ensure_ascii=False).encode() for record in records]
    with ImpactIndexWriter(path, FIELDS, words=True) as writer:
        for start in range(0, COUNT, 700):
            end = min(start + 700, COUNT)
            writer.add(impacts.ids[start:end], documents[start:end], *impacts.rows(start, end))
    return path


@pytest.fixture(scope="module")
def index(path: Path) -> Iterator[ImpactIndex]:
    with ImpactIndex.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def words(index: ImpactIndex) -> WordSearch:
    return WordSearch(index)


@pytest.fixture(scope="module")
def alone(records: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordIndex]:
    """The same texts, and nothing else."""
    path = tmp_path_factory.mktemp("alone") / "lucene"
    texts = [document_text(str(record["title"]), str(record["text"])) for record in records]
    build_word_index(path, [str(record["_id"]) for record in records], texts)
    with WordIndex.open(path) as opened:
        yield opened


def found(words: WordSearch, text: str, k: int) -> list[tuple[str, float]]:
    ordinals, scores = words.search(text, k)
    return [(f"doc-{ordinal:05}", score) for ordinal, score in zip(ordinals.tolist(), scores.tolist(), strict=True)]


@pytest.mark.parametrize("k", [1, 10, 500, COUNT, 10**12])
@pytest.mark.parametrize("text", QUERIES)
def test_hits_and_scores_are_those_of_words_alone(words: WordSearch, alone: WordIndex, text: str, k: int) -> None:
    assert found(words, text, k) == alone.search(text, k)


@settings(deadline=None)
@given(text=TEXTS, k=st.integers(1, 100))
def test_any_text_is_answered_as_by_words_alone(words: WordSearch, alone: WordIndex, text: str, k: int) -> None:
    assert found(words, text, k) == alone.search(text, k)


@settings(deadline=None)
@given(text=TEXTS, below=st.sampled_from([0, 1, 30, 300, 2700, COUNT]), k=st.integers(1, 200))
def test_a_filter_leaves_the_hits_that_brute_force_leaves(
    index: ImpactIndex, words: WordSearch, text: str, below: int, k: int
) -> None:
    among = index.where(["and", "1", "number", "share", "0.0", f"{below - 1}.0"])
    assert among.count == below
    every, scores = words.search(text, COUNT)
    keep = every * 7 % COUNT < below
    ordinals, best = words.search(text, k, among)
    np.testing.assert_array_equal(ordinals, every[keep][:k])
    np.testing.assert_array_equal(best, scores[keep][:k])


def test_scores_of_any_documents_are_those_of_the_search(words: WordSearch) -> None:
    ordinals = np.random.default_rng(6).integers(0, COUNT, 900)
    for text in QUERIES:
        hits = dict(zip(*(values.tolist() for values in words.search(text, COUNT)), strict=True))
        assert words.scores(text, ordinals).tolist() == [hits.get(ordinal, 0.0) for ordinal in ordinals.tolist()]


def test_many_threads_with_and_without_a_filter(index: ImpactIndex, words: WordSearch) -> None:
    among = index.where(["number", "share", "0.0", "999.0"])
    asked = [(text, chosen) for text in QUERIES for chosen in (None, among)] * 20
    expected = [[values.tolist() for values in words.search(text, 50, chosen)] for text, chosen in asked[:14]] * 20
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: [values.tolist() for values in words.search(one[0], 50, one[1])], asked))
    assert answers == expected
    assert sum(len(ordinals) for ordinals, _ in answers) > 1000


def test_closing_while_others_search(path: Path, index: ImpactIndex, words: WordSearch) -> None:
    expected = [values.tolist() for values in words.search("retrieval of vectors", 50)]
    closing = ImpactIndex.open(path)
    running = threading.Barrier(5)

    def search_until_closed() -> None:
        searching = WordSearch(closing)
        running.wait()
        while True:
            assert [values.tolist() for values in searching.search("retrieval of vectors", 50)] == expected

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(search_until_closed) for _ in range(4)]
        running.wait()
        closing.close()
        for answer in answers:
            with pytest.raises(JavaError, match="the index is closed"):
                answer.result()
    assert [values.tolist() for values in words.search("retrieval of vectors", 50)] == expected


def test_words_leave_the_impacts_as_they_are(index: ImpactIndex, impacts: Collection) -> None:
    index.check()
    assert index.ids() == impacts.ids
    terms, weights = query({3: 1.0, 17: 2.0, 40: 0.5})
    ordinals, scores = index.search(terms, weights, COUNT)
    every, expected = impacts.best(terms, weights, COUNT)
    np.testing.assert_array_equal(ordinals, every)
    np.testing.assert_array_equal(scores, expected)
    assert index.terms(7)[0].tolist() == np.flatnonzero(impacts.matrix[7]).tolist()


def test_texts_are_counted_also_those_without_a_word(index: ImpactIndex, written: Path, tmp_path: Path) -> None:
    assert count_texts(index) == COUNT
    with ImpactIndex.open(written) as without:
        assert count_texts(without) == 0
        assert WordSearch(without).search("retrieval", 5)[0].tolist() == []
        assert WordSearch(without).scores("retrieval", np.array([3])).tolist() == [0.0]
    with ImpactIndexWriter(tmp_path / "empty", words=True):
        pass
    with ImpactIndex.open(tmp_path / "empty") as empty:
        assert count_texts(empty) == 0
        assert WordSearch(empty).search("retrieval", 5)[0].tolist() == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"_id": "a", "text": 3}', 'document "a": title and text must be texts'),
        (b'{"_id": "a", "title": "b", "text": 0}', 'document "a": title and text must be texts'),
        (b'{"_id": "a", "title": false, "text": "b"}', 'document "a": title and text must be texts'),
        (b'{"_id": "a", "title": [], "text": "b"}', 'document "a": title and text must be texts'),
        (b'{"_id": "a", "title": "b", "text": {}}', 'document "a": title and text must be texts'),
        (b"[]", 'document "a": title and text must be texts'),
        (b"null", 'document "a": title and text must be texts'),
        (b'{"_id"', 'document "a" is not JSON'),
    ],
)
def test_a_document_without_a_text_to_index_is_refused(tmp_path: Path, document: bytes, message: str) -> None:
    rows = (np.array([0, 0]), np.empty(0, np.int32), np.empty(0, np.int32))
    with pytest.raises(ValueError, match=message), ImpactIndexWriter(tmp_path / "bad", words=True) as writer:
        writer.add(["a"], [document], *rows)
    assert not (tmp_path / "bad").exists()


def test_a_title_or_text_that_is_null_or_missing_is_empty(tmp_path: Path) -> None:
    rows = (np.array([0, 0, 0, 0]), np.empty(0, np.int32), np.empty(0, np.int32))
    documents = [b'{"title": null, "text": "fox"}', b'{"title": "fox"}', b'{"title": null, "text": ""}']
    with ImpactIndexWriter(tmp_path / "good", words=True) as writer:
        writer.add(["a", "b", "c"], documents, *rows)
    with ImpactIndex.open(tmp_path / "good") as index:
        assert WordSearch(index).search("fox", 3)[0].tolist() == [0, 1]


def test_bad_arguments_are_refused(words: WordSearch) -> None:
    with pytest.raises(ValueError, match="k is 0"):
        words.search("fox", 0)
    with pytest.raises(ValueError, match="is not valid Unicode"):
        words.search("\udfff", 1)
    with pytest.raises(ValueError, match="ordinals must be 0 to 2999"):
        words.scores("fox", np.array([COUNT]))


def test_names_with_signs_are_words(tmp_path: Path) -> None:
    texts = {
        "c++": "A parser generator for C++ and more",
        "c": "A parser generator for C and more",
        "c#": "A parser generator for C#",
        ".net": "Bindings for .NET",
        "net": "A net for fish. Nothing else",
        "node.js": "A server on Node.js",
        "node": "A node of a graph",
    }
    build_word_index(tmp_path / "words", list(texts), list(texts.values()))
    with WordIndex.open(tmp_path / "words") as words:
        for name in ("c++", "c#", ".net", "node.js"):
            ranked = words.search(name, 10)
            assert ranked[0][0] == name
            assert len(ranked) == 1 or ranked[0][1] > ranked[1][1]
        assert [name for name, _ in words.search("cplusplus", 10)] == ["c++"]
        assert {found for found, _ in words.search("net", 10)} == {"net", ".net"}


def test_a_hyphen_makes_no_difference(tmp_path: Path) -> None:
    texts = {
        "wi-fi": "A driver for Wi-Fi cards",
        "wifi": "A driver for WiFi cards",
        "wi": "A driver for cards by Wi and Sons",
        "utf-8": "Texts in UTF\u20118",
        "utf8": "Texts in utf8",
        "router": "A router: wi-fi-router",
        "date": "Seen 2021-05-03",
        "ascii-art": f"ascii-art and {'a' * 21}-b",
        "bare": "- -- -x y- z",
    }
    build_word_index(tmp_path / "words", list(texts), list(texts.values()))
    with WordIndex.open(tmp_path / "words") as words:
        assert [name for name, _ in words.search("wi-fi", 10)][:2] == ["wi-fi", "router"]
        assert {name for name, _ in words.search("wi-fi", 10)} == {"wi-fi", "wifi", "router", "wi"}
        assert {name for name, _ in words.search("wifi", 10)} == {"wi-fi", "wifi", "router"}
        assert {name for name, _ in words.search("UTF8", 10)} == {"utf-8", "utf8"}
        assert {name for name, _ in words.search("utf‐8", 10)} == {"utf-8", "utf8"}
        assert next(name for name, _ in words.search("fi-router", 10)) == "router"
        assert words.search("202105 2021053 aaaaaaaaaaaaaaaaaaaaab xy", 10) == []
        assert [name for name, _ in words.search("05", 10)] == ["date"]


UNSPACED = {
    "zh": "办公室的咖啡机每天早上七点由值班人员打开，水箱要先装满。",
    "zh-backwards": "机啡咖的室公办",
    "ja": "これは検索エンジンのための短い文書です。",
    "ja-other": "エンジニアの検査と索引",
    "th": "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "th-other": "ประเทศลาวอยู่ติดกับเวียดนาม",
    "km": "ភាសាខ្មែរមិនមានដកឃ្លា",
    "lo": "ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງ",
    "en": "The quick foxes are running",
}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("咖啡机", "zh"),
        ("検索エンジン", "ja"),
        ("ช่องว่าง", "th"),
        ("ខ្មែរ", "km"),
        ("ລາວ", "lo"),
        ("fox running 🦊", "en"),
    ],
)
def test_words_of_scripts_without_spaces_are_found_in_their_order(tmp_path: Path, text: str, first: str) -> None:
    build_word_index(tmp_path / "words", list(UNSPACED), list(UNSPACED.values()))
    with WordIndex.open(tmp_path / "words") as words:
        found = words.search(text, 10)
        assert found[0][0] == first
        assert words.search("语 ថៃ", 10) == []
