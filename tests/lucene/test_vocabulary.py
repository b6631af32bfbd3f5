"""What a term of each vocabulary is: the terms of a text, their places, and texts that are none."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.vocabulary import Language, Place, Vocabulary, VocabularyKind, term_problem
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.tiny import tiny_documents, train_tokenizer

TEXT = "🎵🎵 The wi-fi of 日本語, naïve 𝒳-ray running🦊foxes"
TEXTS = st.lists(
    st.sampled_from(
        ["the", "Wi-Fi", "c++", "🎵", "日本語", "ภาษาไทย", "Größe", "𝒳", "don't", "٣", "\u200d", " ", "-", "."]
    )
    | st.text(max_size=6),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """A byte-level BPE, which knows every text."""
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    train_tokenizer(path, [document.full_text for document in tiny_documents()])
    return TextTokenizer.from_file(path)


@pytest.fixture(scope="module")
def few() -> TextTokenizer:
    """A tokenizer of four words and an unknown one."""
    model = Tokenizer(models.WordLevel({"[UNK]": 0, "wi": 1, "fi": 2, "fox": 3}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return TextTokenizer.from_bytes(model.to_str().encode(), name="few")


def each(tokenizer: TextTokenizer) -> Iterator[Vocabulary]:
    languages: tuple[Language, Language] = ("english", "german")
    yield Vocabulary(tokenizer, None)
    for language in languages:
        yield Vocabulary(None, language)


def test_terms_of_each_kind(few: TextTokenizer) -> None:
    texts = ["The foxes: fox Wi fi", "fi fi", "", "the", "日本"]
    assert Vocabulary(few, None).terms_of(texts) == [["3", "1", "2"], ["2", "2"], [], [], []]
    words = [["fox", "fox", "wi", "fi"], ["fi", "fi"], [], [], ["日", "本", "日本"]]
    assert Vocabulary(None, "english").terms_of(texts) == words
    assert [vocabulary.terms_of([]) for vocabulary in each(few)] == [[]] * 3


def test_places_of_tokens_are_characters(few: TextTokenizer) -> None:
    text = "🎵 Wi 𝒳 fi\n fox"
    found = Vocabulary(few, None).places_of([text, "", "wi"])
    assert found == [[Place("1", 2, 4), Place("2", 7, 9), Place("3", 11, 14)], [], [Place("1", 0, 2)]]
    assert [text[start:end] for _, start, end in found[0]] == ["Wi", "fi", "fox"]


def test_places_of_words_are_characters() -> None:
    (found,) = Vocabulary(None, "english").places_of([TEXT])
    place = dict.fromkeys([term for term, *_ in found], (0, 0)) | {term: tuple(span) for term, *span in found}
    assert [TEXT[slice(*place[term])] for term in ("wi", "fi", "naïv", "x", "rai", "run", "🦊", "fox", "日", "語")] == [
        *("wi", "fi", "naïve", "𝒳", "ray", "running", "🦊", "foxes", "日", "語")
    ]
    assert [one[1:] for one in found if one.term == "🎵"] == [(0, 1), (1, 2)]
    assert "the" not in place


def test_places_of_joined_words_are_inside_the_name() -> None:
    """Empty, or some of its signs."""
    texts = ["🎵 use Wi-Fi now", "🎵 C++ code", "🎵 C# code", "🎵 (.NET) code"]
    words = Vocabulary(None, "standard")
    for text, term, name in zip(
        texts, ("wifi", "cplusplus", "csharp", "dotnet"), ("Wi-Fi", "C++", "C#", ".NET"), strict=True
    ):
        (start, end), *more = [(start, end) for found, start, end in words.places_of([text])[0] if found == term]
        assert not more
        first = text.index(name)
        assert first <= start <= end <= first + len(name)
    assert Place("wifi", 8, 8) in words.places_of(texts[:1])[0]


def test_places_of_pairs_end_with_the_second_sign() -> None:
    texts = ["𠀀𠀁𠀂 日本語", "ภาษาไทย", "エンジン"]
    chinese, thai, kana = Vocabulary(None, "english").places_of(texts)
    pairs = {term: end for term, _, end in chinese if len(term) == 2}
    assert pairs == {"𠀀𠀁": 2, "𠀁𠀂": 3, "日本": 6, "本語": 7}
    for run, length in ((thai, 7), (kana, 4)):
        whole, *others = sorted(((start, end) for _, start, end in run), key=lambda place: place[0] - place[1])
        assert whole == (0, length)
        assert {end - start for start, end in others} == {2}


@settings(max_examples=50)
@given(texts=st.lists(TEXTS, max_size=4))
def test_places_are_those_of_the_terms(tokenizer: TextTokenizer, few: TextTokenizer, texts: list[str]) -> None:
    for one in (tokenizer, few):
        for vocabulary in each(one):
            terms, places = vocabulary.terms_of(texts), vocabulary.places_of(texts)
            for text, bag, found in zip(texts, terms, places, strict=True):
                if vocabulary.tokenizer is not tokenizer:  # a byte of a sign has no place by itself
                    assert sorted(bag) == sorted(place.term for place in found)
                assert {place.term for place in found} <= set(bag)
                ids = 0 if vocabulary.tokenizer is None else vocabulary.tokenizer.vocab_size
                assert not any(term_problem(term, vocabulary.kind, ids) for term in bag)
                assert all(0 <= place.start <= place.end <= len(text) for place in found)
                assert found == sorted(found, key=lambda place: place[1:])


@pytest.mark.parametrize(
    ("term", "kinds"),
    [
        ("0", "tokens words"),
        ("3", "tokens words"),
        ("4", "words"),
        ("fox", "words"),
        ("#3", "words"),
        ("#\ufe0f\u20e3", "words"),
        ("", ""),
        ("a\u2003b", ""),
        ("日" * 341, "words"),
        ("日" * 342, ""),
        ("-1", "words"),
        ("\u0663", "words"),
    ],
)
def test_texts_that_are_no_terms_are_told(term: str, kinds: str) -> None:
    assert [kind for kind in get_args(VocabularyKind) if term_problem(term, kind, 4) is None] == kinds.split()


def test_an_index_keeps_terms_of_any_text(tmp_path: Path) -> None:
    names = ["#12", "12", "日本", "𝒳", "c++", "a.b", "x\u2024y", "é", "e\u0301", "日" * 341, "😀"]
    with ImpactIndexWriter(tmp_path / "index") as writer:
        count = len(names)
        rows = (np.arange(count + 1), np.arange(count), np.arange(1, count + 1))
        writer.add([str(place) for place in range(count)], [b"{}"] * count, *rows, names)
    with ImpactIndex.open(tmp_path / "index") as index:
        for place, name in enumerate(names):
            ordinals, scores = index.search([name], np.ones(1, np.float32), 5)
            assert (ordinals.tolist(), scores.tolist()) == ([place], [place + 1.0])
        assert index.impacts(names, np.arange(count)).tolist() == np.diag(np.arange(1, count + 1)).tolist()
        assert index.rows(0, count) == [{name: impact} for impact, name in enumerate(names, start=1)]
