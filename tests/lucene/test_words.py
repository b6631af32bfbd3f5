"""Words of a text: hyphens, and spellings that look equal."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.vocabulary import Vocabulary, words_of


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


@pytest.mark.parametrize(
    ("looks", "same"),
    [
        ("Don\u2019t buy O\u2019Reilly\u2019s rock \u2018n\u2019 roll", "Don't buy O'Reilly's rock 'n' roll"),
        ("cafe\u0301 cre\u0300me", "caf\u00e9 cr\u00e8me"),
        ("co\u00adoperate pine\u200bapple \ufeffhidden \u202bعربي\u202c", "cooperate pineapple hidden عربي"),
        ("of\ufb01ce di\ufb03cult", "office difficult"),
        ("\uff37\uff41\uff4c\uff52\uff55\uff53 \uff21\uff22\uff11 \uff43\uff0b\uff0b", "Walrus AB1 c++"),
        ("\uff76\uff9e \u1112\u1161\u11ab \U0001d400bc", "ガ 한 Abc"),
        ("Auf\u200clage kne\u200d\u200ce pine\u200b\u200bapple cafe\u0301\u200bs", "Auflage knee pineapple caf\u00e9s"),
        ("f\u2061unc\u034ftion a\ufe00b\ufe0f", "function ab"),
        ("\u845b\U000e0100\u98fe", "\u845b\u98fe"),
        ("hot\u00a0water wi\u2011fi 10\u00b2", "hot water wi-fi 102"),
    ],
)
def test_spellings_that_look_equal_are_one(looks: str, same: str) -> None:
    vocabulary = Vocabulary(None, "english")
    found, expected = words_of([looks, same])
    assert found == expected
    places, plain = vocabulary.places_of([looks, same])
    marked = [looks[place.start : place.end] for place in places]
    assert [words_of([text])[0][:1] for text in marked if text] == [
        words_of([same[place.start : place.end]])[0][:1] for place in plain if place.end > place.start
    ]


def test_signs_that_part_words_still_do() -> None:
    """A zero-width space ends a word of Khmer, and a joiner belongs to one of Persian."""
    apart, spaced = words_of(["ខ្មែរ\u200bភាសា", "ខ្មែរ ភាសា"], "standard")
    assert apart == spaced
    joiner, none = words_of(["\u0645\u06cc\u200c\u062e\u0648\u0627", "\u0645\u06cc\u062e\u0648\u0627"], "standard")
    assert joiner != none
    emoji, text = words_of(["\u263a\ufe0f", "\u263a"], "standard")  # the selector makes an emoji of the sign
    assert emoji != text


SIGNS = st.sampled_from("aE \u0301\u0323\ufb03\uff21\u00ad\u2019éｶﾞ\u1112\u1161\u11ab日\U0001d400㎏½")


@given(st.lists(SIGNS, max_size=30).map("".join))
def test_the_words_are_those_of_the_normal_form_and_have_places_in_the_text(text: str) -> None:
    normal = unicodedata.normalize("NFKC", text.replace("\u00ad", "").replace("\u2019", "'"))
    assert words_of([text], "standard") == words_of([normal], "standard")
    (places,) = Vocabulary(None, "standard").places_of([text])
    assert all(0 <= place.start <= place.end <= len(text) for place in places)
    assert [place.start for place in places] == sorted(place.start for place in places)
