"""Corrections and completions by the words of a corpus, and the share of a text's words that a document has."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
from lightretriever.artifacts.sparse.bm25 import WordSearch
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.spelling import Spelling
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter

TEXTS = (
    "The bicycle's chain, a chain of 12 links; naïve cyclists oil it.",
    "Bicycles, chains and chairs: größere Räder",
    "A chain letter. Retrieving letters is retrieval, ca. 1990s, x-ray c++ 日本語",
    "The chairman retrieves the retrograde.",
)


def write(path: Path, *, words: bool) -> Path:
    with ImpactIndexWriter(path, words=words) as writer:
        documents = [orjson.dumps({"_id": str(i), "title": "", "text": text}) for i, text in enumerate(TEXTS)]
        terms = np.zeros(len(TEXTS), np.int32)
        writer.add(list("0123"), documents, np.arange(len(TEXTS) + 1), terms, terms + 1)
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImpactIndex]:
    with ImpactIndex.open(write(tmp_path_factory.mktemp("spelling") / "index", words=True)) as index:
        yield index


@pytest.mark.parametrize(
    ("word", "correction"),
    [
        ("bycicle", "bicycle"),  # two neighbours swapped
        ("bicyle", "bicycle"),
        ("chian", "chain"),
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


@pytest.mark.parametrize(
    ("beginning", "completion"),
    [
        ("ch", "chain"),
        ("cha", "chain"),
        ("chair", "chairman"),
        ("chain", ""),
        ("retri", "retrieval"),
        ("q", ""),
        ("zz", ""),
    ],
)
def test_a_beginning_is_completed(index: ImpactIndex, beginning: str, completion: str) -> None:
    assert Spelling(index).completion(beginning) == completion


def test_shares_count_words_in_any_form_but_no_stop_words(index: ImpactIndex) -> None:
    words = WordSearch(index)
    ordinals = np.array([3, 0, 1, 2])
    shares = words.shares("Is the chain of a bicycle retrieved?", ordinals)
    assert shares is not None
    np.testing.assert_allclose(shares, [1 / 3, 2 / 3, 2 / 3, 2 / 3], rtol=1e-6)
    assert words.shares("the of", ordinals) is None
    unknown = words.shares("zyzzyva", ordinals)
    assert unknown is not None
    assert unknown.tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="ordinals must be 0 to 3"):
        words.shares("chain", np.array([4]))


def test_an_index_without_words_has_no_spellings(index: ImpactIndex, tmp_path: Path) -> None:
    assert Spelling(index).available
    with ImpactIndex.open(write(tmp_path / "plain", words=False)) as plain:
        spelling = Spelling(plain)
        assert not spelling.available
        assert (spelling.corrections(["bycicle"]), spelling.completion("ch")) == ([""], "")


def test_a_word_that_is_no_unicode_is_refused(index: ImpactIndex) -> None:
    with pytest.raises(ValueError, match="is not valid Unicode"):
        Spelling(index).corrections(["ab\udc00cd"])
