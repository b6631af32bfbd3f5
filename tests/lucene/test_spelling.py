"""Corrections and completions by the words of a corpus."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from lightretriever.artifacts.sparse.index import ImpactIndex, Spelling
from lightretriever.artifacts.sparse.vocabulary import Language, words_of
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from tests.support.wordings import raises

TEXTS = (
    "The bicycle's chain, a chain of 12 links; naïve cyclists oil it.",
    "Bicycles, chains and chairs: größere Räder",
    "A chain letter. Retrieving letters is retrieval, ca. 1990s, x-ray c++ 日本語",
    "The chairman retrieves the retrograde.",
)


def write(path: Path, texts: Sequence[str], *, language: Language | None = "english", first: str = "0") -> Path:
    """The words of texts, each with impact 1. The ids are numbers, but that of the `first` document."""
    rows = [sorted(set(words)) for words in words_of(texts)]
    names = sorted({word for row in rows for word in row})
    with ImpactIndexWriter(path, language=language) as writer:
        records = [{"_id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
        documents = [orjson.dumps(record) for record in records]
        terms = np.array([names.index(word) for row in rows for word in row])
        ids = [first, *(str(number) for number in range(1, len(texts)))]
        writer.add(ids, documents, np.cumsum([0, *map(len, rows)]), terms, np.ones_like(terms), names, records)
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    with ImpactIndex.open(write(tmp_path_factory.mktemp("spelling") / "index", TEXTS)) as index:
        yield index


@pytest.mark.parametrize(
    ("word", "correction"),
    [
        ("bycicle", "bicycle"),  # two neighbours swapped
        ("bicyle", "bicycle"),
        ("naive", "naïve"),
        ("grössere", "größere"),
        ("bicycle", ""),
        ("bicycling", ""),  # another form of a word that is there
        ("the", ""),
        ("hcain", ""),  # the first letter has to be right
        ("chaxx", ""),  # two letters of five
        ("retrqeval", "retrieval"),
        ("zyzzyva", ""),
        ("cha", ""),
        ("1991", ""),
        ("chain" * 2000, ""),
    ],
)
def test_a_word_that_the_corpus_lacks_is_corrected(index: ImpactIndex, word: str, correction: str) -> None:
    assert Spelling(index).corrections([word]) == [correction]


def test_of_words_alike_the_most_frequent_is_taken(index: ImpactIndex) -> None:
    assert Spelling(index).corrections(["chaim", "chair", "chais"]) == ["chain", "", "chain"]


@pytest.fixture(scope="module")
def frequent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    """An index of 1,000 documents, of which so many have each word of three or four letters."""
    numbers = {"dns": 50, "file": 60, "fly": 6, "map": 40, "ham": 30, "hum": 3, "cat": 4, "tool": 20, "toil": 5}
    numbers |= {"manager": 450, "manger": 2, "folder": 390, "folded": 2, "mangel": 3, "managers": 1}
    texts = [" ".join(["all", *(word for word, number in numbers.items() if i < number)]) for i in range(1000)]
    with ImpactIndex.open(write(tmp_path_factory.mktemp("frequent") / "index", texts)) as index:
        yield index


@pytest.mark.parametrize(
    ("word", "correction"),
    [
        ("dsn", "dns"),  # two neighbours swapped
        ("fle", "file"),  # a letter is missing; fly has another in its place
        ("mpa", "map"),
        ("mop", ""),  # another letter
        ("hma", "ham"),
        ("dn", ""),  # too short
        ("act", ""),  # cat begins with another letter
        ("cta", ""),  # four documents are too few
        ("tol", ""),  # tool or toil
        ("dnss", "dns"),  # four letters
        ("hum", ""),  # the corpus has it
        ("manger", "manager"),  # a misspelling in the corpus: 225 times as many documents have the other word
        ("folded", ""),  # 195 times as many
        ("managers", ""),  # another form of a frequent word
        ("mangel", ""),  # two letters
    ],
)
def test_three_letters_are_corrected_where_there_is_no_doubt(frequent: ImpactIndex, word: str, correction: str) -> None:
    assert Spelling(frequent).corrections([word]) == [correction]


def test_the_id_of_a_document_is_no_misspelling(tmp_path: Path) -> None:
    texts = ["moca", *["moka"] * 999]
    for first, correction in (("0", "moka"), ("moca", "")):
        with ImpactIndex.open(write(tmp_path / f"index-{first}", texts, first=first)) as index:
            assert Spelling(index).corrections(["moca"]) == [correction]


@pytest.mark.parametrize(
    ("beginning", "words"),
    [
        ("ch", [("chain", 2), ("chains", 1), ("chairman", 1), ("chairs", 1)]),
        ("chair", [("chairman", 1), ("chairs", 1)]),
        ("chain", [("chain", 2), ("chains", 1)]),
        ("retri", [("retrieval", 1), ("retrieves", 1), ("retrieving", 1)]),
        ("größ", [("größere", 1)]),
        ("c", []),
        ("zz", []),
    ],
)
def test_the_words_of_a_beginning(index: ImpactIndex, beginning: str, words: list[tuple[str, int]]) -> None:
    assert Spelling(index).completions(beginning, 10) == words
    assert Spelling(index).completions(beginning, 2) == words[:2]


def test_an_index_may_have_no_spellings(tmp_path: Path) -> None:
    with ImpactIndex.open(write(tmp_path / "plain", TEXTS, language=None)) as plain:
        spelling = Spelling(plain)
        assert (spelling.corrections(["bycicle"]), spelling.completions("ch", 9)) == ([""], [])


def test_a_word_that_is_no_unicode_is_refused(index: ImpactIndex) -> None:
    with raises(ValueError):
        Spelling(index).corrections(["ab\udc00cd"])


def test_a_title_or_text_that_is_null_or_missing_is_empty(tmp_path: Path) -> None:
    rows = (np.array([0, 0, 0, 0]), np.empty(0, np.int32), np.empty(0, np.int32))
    records: list[Any] = [{"title": None, "text": "fox"}, {"title": "fox"}, {"title": None, "text": ""}]
    with ImpactIndexWriter(tmp_path / "good", language="english") as writer:
        writer.add(["a", "b", "c"], [b"{}"] * 3, *rows, records=records)
    with ImpactIndex.open(tmp_path / "good") as index:
        assert Spelling(index).completions("fo", 9) == [("fox", 2)]
