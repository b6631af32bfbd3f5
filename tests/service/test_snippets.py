"""Snippets are parts of the text as it stands, the best there are, with the query's words marked and no others."""

import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter

import pytest
from fastapi.testclient import TestClient
from hypothesis import example, given
from hypothesis import strategies as st
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import DeadlineError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest, Snippet
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.snippets import LONGEST_READ, Snippets
from lightretriever.service.search.word_pattern import WORD

from tests.service.conftest import SETTINGS
from tests.support.tiny import make_tiny_bundle

WORDS = ["music", "player", "terminal", "search", "a", "the", "plays", "Übergröße", "日本", "x", "İ", "🎵"]
TEXTS = st.lists(st.sampled_from([*WORDS, "of", "engine", "(music)", "Music,", "\n"]), max_size=60).map(" ".join)


def snippets(engine: SearchEngine, query: str, *further: tuple[str, float]) -> Snippets:
    encoder: QueryEncoder = engine.parts.encoder
    encoded = encoder.encode(query, "default", StageClock(), extra_terms=further)
    return Snippets(encoder.tokenizer, encoded, [query, *(text for text, weight in further if weight > 0)])


def marked(snippet: Snippet) -> list[str]:
    return [snippet.text[start:end] for start, end in snippet.marks]


@given(text=TEXTS, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), length=st.integers(20, 80))
@example(text="İ" * 30 + " music", query=["music"], length=20)
@example(text="  \n music", query=["terminal"], length=20)
@example(text="\n" + "很" * 500, query=["music"], length=200)
@example(text="標題\n" + "あ" * 300, query=["music"], length=200)
@example(text="あ" * 300 + " music " + "あ" * 300, query=["music"], length=200)
@example(text=f"see https://example.org/{'a' * 300} or https://example.org/{'b' * 300}", query=["or"], length=80)
def test_a_snippet_is_a_part_of_the_text(engine: SearchEngine, text: str, query: list[str], length: int) -> None:
    snippet = snippets(engine, " ".join(query)).one(text, length)
    assert snippet.text == text[snippet.start :][: len(snippet.text)]
    assert length >= len(snippet.text) >= min(len(text), length - 2 * min(30, length // 3))
    assert all(0 <= start < end <= len(snippet.text) for start, end in snippet.marks)
    assert all(before[1] < after[0] for before, after in pairwise(snippet.marks))


@pytest.fixture(scope="module")
def weighing(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, SearchEngine]]:
    """Engines by whether tokens have IDF, so that they weigh differently at the beginning and within a text."""
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("bundle") / "bundle", idf=True)
    with SearchEngine.open(tiny_bundle, SETTINGS) as plain, SearchEngine.open(bundle, SETTINGS) as with_idf:
        yield {False: plain, True: with_idf}


@pytest.mark.parametrize("idf", [False, True])
@given(text=TEXTS, query=st.lists(st.sampled_from(["music", "player", "terminal", "plays"]), min_size=1, max_size=4))
@example(text="é (music) player engine terminal engine plays", query=["plays", "music"])
@example(text="é terminal (music) engine (music) music player", query=["music", "music", "player", "terminal"])
@example(text="(music) of the engine of the engine of player", query=["music", "player", "music"])
def test_no_other_part_has_more_of_the_query(
    weighing: dict[bool, SearchEngine], idf: bool, text: str, query: list[str]
) -> None:
    """A word weighs as much as its tokens in the query."""
    engine = weighing[idf]
    encoder = engine.parts.encoder
    asked = encoder.encode(" ".join(query), "default", StageClock())
    weights = dict(zip(asked.terms.tolist(), asked.weights.tolist(), strict=True))
    maker = snippets(engine, " ".join(query))
    whole, length = maker.one(text, 2000), 40
    spellings: dict[str, float] = {
        word: sum(weights[token] for token in encoder.tokenizer.query_ids(word)) for word in query
    }

    def worth(words: list[str]) -> float:
        """What the different words weigh together."""
        return sum(spellings[word] for word in {word.lower() for word in words})

    possible = [
        worth([whole.text[start:end] for start, end in whole.marks[first : last + 1]])
        for first in range(len(whole.marks))
        for last in range(first, len(whole.marks))
        if whole.marks[last][1] - whole.marks[first][0] <= length
    ]
    assert worth(marked(maker.one(text, length))) >= max(possible, default=0) - 1e-4


def test_words_are_marked_wherever_they_stand(engine: SearchEngine) -> None:
    text = "Music (music) of MUSIC, “music”: musical, a-music\nmusic"
    assert marked(snippets(engine, "music").one(text, 200)) == ["Music", "music", "MUSIC", "music", "music", "music"]
    assert marked(snippets(engine, "terminal music").one("music in the terminal", 200)) == ["music", "terminal"]


def test_words_that_only_share_a_part_with_the_query_are_not_marked(engine: SearchEngine) -> None:
    assert marked(snippets(engine, "play").one("It plays; a player replays.", 200)) == []


@given(text=TEXTS.filter(str.isascii), query=st.lists(st.sampled_from(WORDS[:7]), min_size=1, max_size=4))
def test_plain_texts_are_marked_as_others_are(engine: SearchEngine, text: str, query: list[str]) -> None:
    """Texts of ASCII alone take a shorter way; with a further character they don't."""
    maker = snippets(engine, " ".join(query))
    plain, other = maker.one(text, 2000), maker.one(f"{text} é", 2000)
    assert (plain.marks, f"{plain.text} é") == (other.marks, other.text)


def test_the_part_with_most_of_the_query_is_taken(engine: SearchEngine) -> None:
    text = "music " + "of the engine " * 30 + "here the terminal plays music again " + "of the engine " * 30
    snippet = snippets(engine, "music terminal").one(text, 60)
    assert marked(snippet) == ["terminal", "music"]
    assert 0 < text.index("terminal") - snippet.start < 30
    assert text[snippet.start - 1] == " "
    assert text[snippet.start + len(snippet.text)] == " "


def test_without_a_match_a_snippet_is_the_beginning(engine: SearchEngine) -> None:
    snippet = snippets(engine, "chess").one("of the engine " * 20, 30)
    assert (snippet.text, snippet.start, snippet.marks) == ("of the engine of the engine of", 0, [])
    assert snippets(engine, "chess").one("", 30) == Snippet(text="", start=0, marks=[])


def test_places_are_those_of_the_text_whatever_lower_case_does(engine: SearchEngine) -> None:
    """A dotted capital I becomes two characters in lower case."""
    snippet = snippets(engine, "music").one("İİİ Music İ", 100)
    assert (snippet.marks, marked(snippet)) == ([(4, 9)], ["Music"])


def test_chinese_and_japanese_words_are_marked_within_a_line(engine: SearchEngine) -> None:
    assert marked(snippets(engine, "検索").one("これは検索エンジンのための短い文書です。", 100)) == ["検索"]


def test_words_go_on_over_combining_marks(engine: SearchEngine) -> None:
    for word, text in (
        ("संगीत", "यह संगीत बजाता है। संगीतकार"),
        ("ดนตรี", "เครื่อง ดนตรี ที่ดี"),
        ("cafe\u0301s", "Two cafe\u0301s, one cafe\u0301."),
        ("שָׁלוֹם", "אמר שָׁלוֹם לכולם"),
        ("می\u200cخواهم", "من می\u200cخواهم بروم"),
        ("𑄌𑄋𑄴𑄟𑄳𑄦", "(𑄌𑄋𑄴𑄟𑄳𑄦)"),
        ("か\u3099", "学か\u3099行"),
    ):
        assert marked(snippets(engine, word).one(text, 100)) == [word]
    assert marked(snippets(engine, "cafe").one("Two cafe\u0301s, one cafe\u0301.", 100)) == []


def test_names_keep_their_signs(engine: SearchEngine) -> None:
    text = "C and C++ and C#, .NET and a net; x+y, a+++ and c++."
    assert marked(snippets(engine, "c++ .net").one(text, 80)) == ["C++", ".NET", "c++"]
    assert marked(snippets(engine, "c").one(text, 80)) == ["C"]
    words = [word.group() for word in WORD.finditer("issue#5, x+y, a++b, c+++, end.net 中文c++")]
    assert words == ["issue", "5", "x", "y", "a", "b", "c", "end", "net", "中", "文", "c++"]


def test_a_hyphen_makes_no_difference(engine: SearchEngine) -> None:
    text = "Wi-Fi, WiFi, wi‑fi-router and wi fi; a fi-wi, wi--fi"
    assert marked(snippets(engine, "wifi").one(text, 80)) == ["Wi-Fi", "WiFi", "wi‑fi"]
    assert marked(snippets(engine, "wi-fi").one(text, 80)) == [
        *("Wi-Fi", "WiFi", "wi‑fi", "wi", "fi", "fi", "wi", "wi", "fi")
    ]
    assert marked(snippets(engine, "WiFi").one("plain: wi-fi, wifi", 80)) == ["wi-fi", "wifi"]
    assert marked(snippets(engine, "utf8").one("Größe: UTF-8, utf8, 8-8", 80)) == ["UTF-8", "utf8"]
    assert marked(snippets(engine, "music").one("a-music-player", 80)) == ["music"]


@pytest.mark.parametrize(
    ("query", "text", "marks"),
    [
        ("ช่องว่าง", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", ["ช่องว่าง"]),
        ("ภาษา ช่องว่าง", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", ["ภาษา", "ช่องว่าง"]),
        ("มีช่องว่างในภาษา", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", ["ภาษา", "มีช่องว่าง"]),
        ("ลาว", "ประเทศลาวอยู่ติดกับเวียดนาม", ["ลาว"]),
        ("ລາວ", "ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງ", ["ລາວ"]),
        ("ខ្មែរ", "ភាសាខ្មែរមិនមានដកឃ្លា", ["ខ្មែរ"]),
        ("မြန်မာ", "ဤစာသည်မြန်မာဘာသာဖြစ်သည်", ["မြန်မာ"]),
        ("ไทย", "ประเทศลาวอยู่ติดกับเวียดนาม", []),
        ("น้ำ", "น้ำใจ และ น้า", ["น้ำ"]),
    ],
)
def test_scripts_without_spaces_are_marked_by_rows_of_signs(
    engine: SearchEngine, query: str, text: str, marks: list[str]
) -> None:
    assert marked(snippets(engine, query).one(text, 200)) == marks
    far = f"{text[::-1]} " * 3 + "music " * 40
    assert marked(snippets(engine, query).one(f"{far}{text}", 60)) == marks


def test_every_combining_mark_is_one_of_a_word() -> None:
    letters = [chr(place) for place in range(0x20000) if unicodedata.category(chr(place)).startswith("L")]
    marks = [chr(place) for place in range(0x20000) if unicodedata.category(chr(place)).startswith("M")]
    assert len(marks) > 2000
    assert [mark for mark in marks if not WORD.fullmatch(f"a{mark}b{mark}") or not WORD.fullmatch(f"日{mark}")] == []
    assert WORD.search("".join(marks)) is None
    assert [letter for letter in letters if not WORD.fullmatch(letter)] == []
    assert [word.group() for word in WORD.finditer("日本 snake_case x2 (it's)")] == [
        *("日", "本", "snake_case", "x2", "it", "s"),
    ]


def test_words_of_a_weight_below_zero_are_not_marked(engine: SearchEngine) -> None:
    maker = snippets(engine, "music", ("terminal", -0.5), ("player", 0.5))
    assert marked(maker.one("a music player for the terminal", 100)) == ["music", "player"]


def test_a_word_longer_than_a_snippet(engine: SearchEngine) -> None:
    word = "music" * 10
    snippet = snippets(engine, word).one(f"a {word} b", 20)
    assert len(snippet.text) <= 20
    assert all(end <= 20 for _, end in snippet.marks)


def test_only_the_beginning_of_a_very_long_text_is_looked_at(engine: SearchEngine) -> None:
    maker = snippets(engine, "music")
    filler = "of the engine " * (LONGEST_READ // 14)
    assert marked(maker.one(f"{filler[:-20]} music", 100)) == ["music"]
    assert marked(maker.one(f"{filler} of the engine music", 100)) == []


def test_hits_have_snippets_of_fields_that_are_not_returned(client: TestClient) -> None:
    asked = {"query": "music", "mode": "sparse", "fields": ["year"], "snippets": {"fields": ["text"], "length": 40}}
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


def test_a_field_that_is_no_text_has_no_snippet(engine: SearchEngine) -> None:
    asked = {"query": "music", "snippets": {"fields": ["year", "title"]}}
    for hit in engine.search(SearchRequest.model_validate(asked)).hits:
        assert set(hit.snippets or {}) == {"title"}


def test_no_field_is_begun_after_the_deadline(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the search goes on by a day with each text that is read."""
    texts: list[str] = []
    one = Snippets.one

    def slow(maker: Snippets, text: str, length: int) -> Snippet:
        texts.append(text)
        return one(maker, text, length)

    monkeypatch.setattr(Snippets, "one", slow)
    monkeypatch.setattr(
        "lightretriever.service.search.snippets.perf_counter", lambda: perf_counter() + 86_400 * len(texts)
    )
    asked = {"query": "music", "k": 1, "snippets": {"fields": ["title", "text"]}}
    with pytest.raises(DeadlineError, match=r"The snippets were not made within 60000 ms\."):
        engine.search(SearchRequest.model_validate(asked))
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        ({"fields": ["body"]}, "snippets.fields", "documents have no such field; they have: "),
        ({"length": 5}, "snippets.length", "greater than or equal to 20"),
        ({"fields": []}, "snippets.fields", "at least 1 item"),
        (True, "snippets", "must be an object"),
    ],
)
def test_wrong_snippet_requests_are_refused(client: TestClient, asked: object, field: str, message: str) -> None:
    answer = client.post("/search", json={"query": "music", "snippets": asked})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert message in error["message"]
