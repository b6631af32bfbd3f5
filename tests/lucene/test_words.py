"""Texts found by their words: names with signs, hyphens, scripts without spaces."""

from pathlib import Path

import pytest
from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index


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
