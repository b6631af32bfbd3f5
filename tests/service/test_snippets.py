"""Snippets are parts of the text as it stands, the best there are, with the query's words marked and no others."""

import unicodedata
from itertools import pairwise

import pytest
from fastapi.testclient import TestClient
from hypothesis import example, given
from hypothesis import strategies as st

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.service.errors import DeadlineError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest, Snippet
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.snippets import LONGEST_READ, Snippets
from lightretriever.service.search.words import WORD
from tests.service.conftest import Noted
from tests.support.wordings import raises

WORDS = ["music", "player", "terminal", "search", "a", "the", "plays", "Übergröße", "日本", "x", "İ", "🎵"]
TEXTS = st.lists(st.sampled_from([*WORDS, "of", "engine", "(music)", "Music,", "\n"]), max_size=60).map(" ".join)


@pytest.fixture(scope="module")
def words(tiny_bundle: Bundle) -> QueryEncoder:
    """An encoder whose terms are words."""
    return QueryEncoder(tiny_bundle.tokenizer(), {"default": tiny_bundle.table("default")}, Vocabulary(None, "english"))


def snippet_of(encoder: QueryEncoder, query: str, text: str, length: int) -> Snippet:
    (snippet,) = Snippets(encoder.vocabulary, encoder.encode(query, "default", StageClock())).of([text], length)
    return snippet


def marked(snippet: Snippet) -> list[str]:
    return [snippet.text[start:end] for start, end in snippet.marks]


@given(text=TEXTS, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), length=st.integers(20, 80))
@example(text=f"a {'music' * 10} b", query=["music" * 10], length=20)
@example(text="İ" * 30 + " music", query=["music"], length=20)
@example(text="  \n music", query=["terminal"], length=20)
@example(text="\n" + "很" * 500, query=["music"], length=200)
@example(text="標題\n" + "あ" * 300, query=["music"], length=200)
@example(text="あ" * 300 + " music " + "あ" * 300, query=["music"], length=200)
@example(text=f"see https://example.org/{'a' * 300} or https://example.org/{'b' * 300}", query=["or"], length=80)
def test_a_snippet_is_a_part_of_the_text(words: QueryEncoder, text: str, query: list[str], length: int) -> None:
    snippet = snippet_of(words, " ".join(query), text, length)
    assert snippet.text == text[snippet.start :][: len(snippet.text)]
    assert length >= len(snippet.text) >= min(len(text), length - 2 * min(30, length // 3))
    assert all(0 <= start < end <= len(snippet.text) for start, end in snippet.marks)
    assert all(before[1] < after[0] for before, after in pairwise(snippet.marks))


@given(text=TEXTS, query=st.lists(st.sampled_from(["music", "player", "terminal", "plays"]), min_size=1, max_size=4))
@example(text="é (music) player engine terminal engine plays", query=["plays", "music"])
@example(text="é terminal (music) engine (music) music player", query=["music", "music", "player", "terminal"])
@example(text="(music) of the engine of the engine of player", query=["music", "player", "music"])
def test_no_other_part_has_more_of_the_query(words: QueryEncoder, text: str, query: list[str]) -> None:
    """A word weighs as often as it comes in the query."""
    asked, length = " ".join(query), 40
    whole = snippet_of(words, asked, text, 2000)

    def worth(found: list[str]) -> int:
        """What the different words weigh together."""
        return sum(query.count(word) for word in {word.lower() for word in found})

    possible = [
        worth([whole.text[start:end] for start, end in whole.marks[first : last + 1]])
        for first in range(len(whole.marks))
        for last in range(first, len(whole.marks))
        if whole.marks[last][1] - whole.marks[first][0] <= length
    ]
    assert worth(marked(snippet_of(words, asked, text, length))) >= max(possible, default=0)


CAFES = "Two cafe\u0301s, one cafe\u0301."
NAMES = "C and C++ and C#, .NET and a net; x+y, a+++ and c++."
HYPHENS = "Wi-Fi, WiFi, wi‑fi-router and wi fi; a fi-wi, wi--fi"


@pytest.mark.parametrize(
    ("query", "text", "marks"),
    [
        ("terminal music", "music in the terminal", "music|terminal"),
        ("music", "Music (music), “MUSIC”: musical, a-music-a\nmusic", "Music|music|MUSIC|musical|music|music"),
        ("music", "İİİ Music İ", "Music"),  # a dotted capital I becomes two characters in lower case
        # All forms of a word, by its stem, but no word that only has a part in common.
        ("house", "A house, houses, housing; the HOUSED greenhouse", "house|houses|housing|HOUSED"),
        ("play", "It plays; a player replays.", "plays"),
        # No stop words.
        ("the music and the terminal", "the music, the terminal", "music|terminal"),
        # Offsets count characters, also behind emoji.
        ("houses 🎵", "🎉🧑\u200d💻 é a house 🎵 𝔘 house", "house|🎵|house"),
        # Chinese and Japanese words within a line.
        ("検索", "これは検索エンジンのための短い文書です。", "検索"),
        # Words go on over combining marks.
        ("שָׁלוֹם", "אמר שָׁלוֹם לכולם", "שָׁלוֹם"),
        ("می\u200cخواهم", "من می\u200cخواهم بروم", "می\u200cخواهم"),
        ("𑄌𑄋𑄴𑄟𑄳𑄦", "(𑄌𑄋𑄴𑄟𑄳𑄦)", "𑄌𑄋𑄴𑄟𑄳𑄦"),
        ("か\u3099", "学か\u3099行", "か\u3099"),
        ("cafe\u0301s", CAFES, "cafe\u0301s|cafe\u0301"),
        ("cafe", CAFES, ""),
        # Names keep their signs.
        ("cplusplus dotnet", NAMES, "C++|.NET|c++"),
        ("c++ .net", NAMES, "C|C++|C#|.NET|net|c++"),
        ("c", NAMES, "C|C++|C#|c++"),
        # A hyphen makes no difference.
        ("wifi", HYPHENS, "Wi-Fi|WiFi|wi‑fi"),
        ("wi-fi", HYPHENS, "Wi-Fi|WiFi|wi‑fi|wi|fi|fi|wi|wi|fi"),
        ("utf8", "Größe: UTF-8, utf8, 8-8", "UTF-8|utf8"),
    ],
)
def test_words_of_the_query_are_marked(words: QueryEncoder, query: str, text: str, marks: str) -> None:
    assert "|".join(marked(snippet_of(words, query, text, 200))) == marks


def test_tokens_mark_only_words_of_which_the_query_has_every_token(engine: SearchEngine) -> None:
    encoder = engine.parts.encoder
    assert len(encoder.tokenizer.query_ids("needle")) > 1
    found = snippet_of(encoder, "needle music", "A needle, Needles and less; musical Music!", 200)
    assert marked(found) == ["needle", "Music"]


def test_the_part_with_most_of_the_query_is_taken(words: QueryEncoder) -> None:
    text = "music " + "of the engine " * 30 + "here the terminal plays music again " + "of the engine " * 30
    snippet = snippet_of(words, "music terminal", text, 60)
    assert marked(snippet) == ["terminal", "music"]
    assert 0 < text.index("terminal") - snippet.start < 30
    assert text[snippet.start - 1] == " "
    assert text[snippet.start + len(snippet.text)] == " "


def test_without_a_match_a_snippet_is_the_beginning(words: QueryEncoder) -> None:
    snippet = snippet_of(words, "chess", "of the engine " * 20, 30)
    assert (snippet.text, snippet.start, snippet.marks) == ("of the engine of the engine of", 0, [])
    assert snippet_of(words, "chess", "", 30) == Snippet(text="", start=0, marks=[])


@pytest.mark.parametrize(
    ("query", "text", "marks"),
    [
        ("ช่องว่าง", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", ["ช่องว่าง", "ว่าง"]),
        ("ภาษา ช่องว่าง", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", ["ภาษา", "ช่องว่าง", "ว่าง"]),
        ("มีช่องว่างในภาษา", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", ["ภาษา", "มีช่องว่าง", "ว่าง"]),
        ("ลาว", "ประเทศลาวอยู่ติดกับเวียดนาม", ["ลาว"]),
        ("ລາວ", "ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງ", ["ລາວ"]),
        ("ខ្មែរ", "ភាសាខ្មែរមិនមានដកឃ្លា", ["ខ្មែរ"]),
        ("မြန်မာ", "ဤစာသည်မြန်မာဘာသာဖြစ်သည်", ["ည်မြန်မာ"]),
        ("ไทย", "ประเทศลาวอยู่ติดกับเวียดนาม", []),
        ("น้ำ", "น้ำใจ และ น้า", ["น้ำ", "น้"]),
    ],
)
def test_texts_without_spaces_are_marked_by_pairs(words: QueryEncoder, query: str, text: str, marks: list[str]) -> None:
    assert marked(snippet_of(words, query, text, 200)) == marks
    far = f"{text[::-1]} " * 3 + "music " * 40
    assert marked(snippet_of(words, query, f"{far}{text}", 60)) == marks


def test_every_combining_mark_is_one_of_a_word() -> None:
    letters = [chr(place) for place in range(0x20000) if unicodedata.category(chr(place)).startswith("L")]
    marks = [chr(place) for place in range(0x20000) if unicodedata.category(chr(place)).startswith("M")]
    assert len(marks) > 2000
    assert [mark for mark in marks if not WORD.fullmatch(f"a{mark}b{mark}") or not WORD.fullmatch(f"日{mark}")] == []
    assert WORD.search("".join(marks)) is None
    assert [letter for letter in letters if not WORD.fullmatch(letter)] == []
    assert WORD.findall("日本 snake_case x2 (it's)") == ["日", "本", "snake_case", "x2", "it", "s"]
    found = WORD.findall("issue#5, x+y, a++b, c+++, end.net 中文c++")
    assert found == ["issue", "5", "x", "y", "a", "b", "c", "end", "net", "中", "文", "c++"]


def test_only_the_beginning_of_a_very_long_text_is_looked_at(words: QueryEncoder) -> None:
    filler = "of the engine " * (LONGEST_READ // 14)
    assert marked(snippet_of(words, "music", f"{filler[:-20]} music", 100)) == ["music"]
    assert marked(snippet_of(words, "music", f"{filler} of the engine music", 100)) == []


def test_hits_have_snippets_of_fields_that_are_not_returned(client: TestClient) -> None:
    """And of no field that is no text."""
    snippets = {"fields": ["text", "year"], "length": 40}
    asked = {"query": "music", "mode": "sparse", "fields": ["year"], "snippets": snippets}
    answer = client.post("/search", json=asked).json()
    plain = client.post("/search", json={"query": "music", "mode": "sparse"}).json()
    assert answer["timings_ms"]["snippets"] > 0
    assert "snippets" not in plain["timings_ms"]
    for hit, whole in zip(answer["hits"], plain["hits"], strict=True):
        assert "snippets" not in whole
        assert hit["fields"] == {"year": whole["fields"]["year"]}
        assert set(hit["snippets"]) == {"text"}
        snippet = hit["snippets"]["text"]
        assert snippet["text"] in whole["fields"]["text"]
        assert all(snippet["text"][start:end].lower() == "music" for start, end in snippet["marks"])
    assert sum(len(hit["snippets"]["text"]["marks"]) for hit in answer["hits"]) >= 3


def test_no_further_hits_are_begun_after_the_deadline(engine: SearchEngine, noted: Noted) -> None:
    """Those of ten hits are read together."""
    calls = noted(Snippets, "of", by_days=True)
    asked = {"query": "music", "k": 20, "snippets": {"fields": ["title", "text"]}}
    with raises(DeadlineError, naming="60000"):
        engine.search(SearchRequest.model_validate(asked))
    assert [len(texts) for _, texts, _ in calls] == [20]
