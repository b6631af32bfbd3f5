"""What a term of each vocabulary is, its places, and texts that are none; corrections and completions by words."""

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.index import ImpactIndex, Spelling
from lightretriever.artifacts.sparse.vocabulary import Language, Vocabulary, VocabularyKind, term_problem, words_of
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.lucene.support import search
from tests.support.tiny import tiny_documents, train_tokenizer
from tests.support.wordings import raises

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
            ordinals, scores = search(index, [name], np.ones(1, np.float32), 5)
            assert (ordinals.tolist(), scores.tolist()) == ([place], [place + 1.0])
        assert index.impacts(names, np.arange(count)).tolist() == np.diag(np.arange(1, count + 1)).tolist()
        assert index.rows(0, count) == [{name: impact} for impact, name in enumerate(names, start=1)]


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
        assert [name for name, _ in words.ranked("wi-fi", 10)][:2] == ["wi-fi", "router"]
        assert {name for name, _ in words.ranked("wi-fi", 10)} == {"wi-fi", "wifi", "router", "wi"}
        assert {name for name, _ in words.ranked("wifi", 10)} == {"wi-fi", "wifi", "router"}
        assert {name for name, _ in words.ranked("UTF8", 10)} == {"utf-8", "utf8"}
        assert {name for name, _ in words.ranked("utf‐8", 10)} == {"utf-8", "utf8"}
        assert next(name for name, _ in words.ranked("fi-router", 10)) == "router"
        assert words.ranked("202105 2021053 aaaaaaaaaaaaaaaaaaaaab xy", 10) == []
        assert [name for name, _ in words.ranked("05", 10)] == ["date"]


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


LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

FORMS: dict[Language, tuple[str, str, str]] = {
    "english": ("retrieving", "retrieves", "the"),
    "arabic": ("كتاب", "والكتاب", "من"),
    "armenian": ("քաղաք", "քաղաքներ", "և"),
    "basque": ("mendi", "mendiak", "eta"),
    "bengali": ("ছেলেরা", "ছেলেদের", "এই"),
    "bulgarian": ("книга", "книгите", "на"),
    "catalan": ("muntanya", "muntanyes", "el"),
    "czech": ("hrad", "hradu", "je"),
    "danish": ("huset", "husene", "og"),
    "dutch": ("boek", "boeken", "het"),
    "estonian": ("raamat", "raamatute", "ja"),
    "finnish": ("talossa", "taloissa", "on"),
    "french": ("cheval", "chevaux", "et"),
    "galician": ("casa", "casas", "de"),
    "german": ("Haus", "Häuser", "und"),
    "greek": ("δρόμος", "δρόμους", "και"),
    "hindi": ("किताब", "किताबों", "और"),
    "hungarian": ("ház", "házakban", "és"),
    "indonesian": ("buku", "bukunya", "yang"),
    "irish": ("fear", "bhfear", "agus"),
    "italian": ("libro", "dell'libro", "di"),
    "latvian": ("grāmata", "grāmatu", "un"),
    "lithuanian": ("knyga", "knygų", "ir"),
    "norwegian": ("huset", "husene", "og"),
    "persian": ("کتاب", "کتاب‌ها", "در"),
    "portuguese": ("nação", "nações", "de"),
    "romanian": ("casă", "casele", "și"),
    "russian": ("город", "городах", "и"),
    "serbian": ("књига", "knjige", "и"),
    "spanish": ("libro", "libros", "de"),
    "swedish": ("hus", "husen", "och"),
    "tamil": ("வீடு", "வீடுகள்", "ஒரு"),
    "telugu": ("బాలుడు", "బాలుని", "మరియు"),
    "turkish": ("IŞIK", "ışıklar", "bir"),
}
"""Two forms that have one stem, and a stop word."""


@pytest.mark.parametrize("language", FORMS)
def test_forms_of_a_word_have_one_stem_and_stop_words_none(language: Language) -> None:
    one, other, stop = FORMS[language]
    stem, same, both, none = words_of([one, other, f"{one} {stop} {other}", stop], language)
    assert len(stem) == 1
    assert (stem, both, none) == (same, 2 * stem, [])
    assert words_of([one], "standard") != words_of([other], "standard")
    assert words_of([stop], "standard") == [[stop]]


def test_a_language_is_not_another() -> None:
    """Every language has an example, and every pair differs in what it makes of one of them."""
    assert {*FORMS, "standard"} == set(LANGUAGES)
    texts = [text for forms in FORMS.values() for text in forms]
    made = {language: str(words_of(texts, language)) for language in LANGUAGES}
    assert {one for one in LANGUAGES for other in LANGUAGES if one < other and made[one] == made[other]} == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_pairs_of_signs_and_names_with_signs(language: Language) -> None:
    chinese, japanese, thai, apart = words_of(["办公室", "日本語 エンジン", "ภาษาไทย", "办, 公"], language)
    assert sorted(chinese) == sorted(["办", "公", "室", "办公", "公室"])
    assert sorted(japanese) == sorted(["日", "本", "語", "日本", "本語", "エンジン", "エン", "ンジ", "ジン"])
    assert thai == ["ภาษาไทย", "ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]
    assert apart == ["办", "公"]
    names = ["C++", "C#", ".NET", "Wi-Fi", "wi\u2011fi"]
    spelt = ["cplusplus", "csharp", "dotnet", "wifi", "wifi"]
    bare = ["c", "c", "net", "wi fi", "wi fi"]
    for name, word, without in zip(*(words_of(texts, language) for texts in (names, spelt, bare)), strict=True):
        assert len(word) == 1
        assert set(word) <= set(name)
        assert not set(word) & set(without)


@pytest.mark.parametrize("language", LANGUAGES)
def test_other_scripts_are_words_in_lower_case(language: Language) -> None:
    """Of Latin, Cyrillic and Greek words as they are, unless they have the script's stems."""
    for text in ("Docker", "Привет", "Ελλάς", "서울", "🎵", "2021"):
        (words,) = words_of([text], language)
        assert len(words) == 1
        assert words[0] == words[0].lower()
        assert words == words_of([text.lower()], language)[0]
    assert words_of(["Kubernetes"], "russian") == words_of(["Kubernetes"], "arabic") == [["kubernetes"]]
    assert words_of(["Москва"], "english") == words_of(["Москва"], "arabic") == [["москва"]]
    assert words_of(["Москва"], "serbian") == [["moskv"]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_word_has_a_space_or_looks_like_a_token(language: Language) -> None:
    """The only words that begin with a # are the keys of a telephone."""
    signs = " ".join(map(chr, range(33, 0x3000, 7)))
    (words,) = words_of(
        [f"# #12 #c #日本 ＃12 c# a\u00a0b \u200b x\u2028y \t\n #\u20e3 #\ufe0f\u20e3 #1\ufe0f {signs}"], language
    )
    assert len(words) > 100
    assert [word for word in words if not word or word != "".join(word.split())] == []
    assert {word for word in words if word.startswith("#")} <= {"#\u20e3", "#\ufe0f\u20e3"}


def test_texts_are_read_one_by_one() -> None:
    assert words_of([], "german") == []
    assert words_of(["", "日", "本", " ", "wi-", "fi"], "german") == [[], ["日"], ["本"], [], ["wi"], ["fi"]]
    many = [f"Haus {number}" for number in range(3000)]
    assert words_of(many, "german") == [["haus", str(number)] for number in range(3000)]
    with raises(ValueError):
        words_of(["\ud800"], "german")


SPELT = (
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
    with ImpactIndex.open(write(tmp_path_factory.mktemp("spelling") / "index", SPELT)) as index:
        yield index


def test_words_that_the_corpus_lacks_are_corrected(index: ImpactIndex) -> None:
    corrected = {
        "bycicle": "bicycle",  # two neighbours swapped
        "bicyle": "bicycle",
        "naive": "naïve",
        "grössere": "größere",
        "bicycle": "",
        "bicycling": "",  # another form of a word that is there
        "the": "",
        "hcain": "",  # the first letter has to be right
        "chaxx": "",  # two letters of five
        "retrqeval": "retrieval",
        "zyzzyva": "",
        "cha": "",
        "1991": "",
        "chain" * 2000: "",
        "chaim": "chain",  # the most frequent of words alike
        "chair": "",
        "chais": "chain",
    }
    assert Spelling(index).corrections([*corrected]) == [*corrected.values()]
    with raises(ValueError):
        Spelling(index).corrections(["ab\udc00cd"])


def test_three_letters_are_corrected_where_there_is_no_doubt(tmp_path: Path) -> None:
    """In 1,000 documents, of which so many have each word."""
    numbers = {"dns": 50, "file": 60, "fly": 6, "map": 40, "ham": 30, "hum": 3, "cat": 4, "tool": 20, "toil": 5}
    numbers |= {"manager": 450, "manger": 2, "folder": 390, "folded": 2, "mangel": 3, "managers": 1}
    texts = [" ".join(["all", *(word for word, number in numbers.items() if i < number)]) for i in range(1000)]
    corrected = {
        "dsn": "dns",  # two neighbours swapped
        "fle": "file",  # a letter is missing; fly has another in its place
        "mpa": "map",
        "mop": "",  # another letter
        "hma": "ham",
        "dn": "",  # too short
        "act": "",  # cat begins with another letter
        "cta": "",  # four documents are too few
        "tol": "",  # tool or toil
        "dnss": "dns",  # four letters
        "hum": "",  # the corpus has it
        "manger": "manager",  # a misspelling in the corpus: 225 times as many documents have the other word
        "folded": "",  # 195 times as many
        "managers": "",  # another form of a frequent word
        "mangel": "",  # two letters
    }
    with ImpactIndex.open(write(tmp_path / "index", texts)) as index:
        assert Spelling(index).corrections([*corrected]) == [*corrected.values()]


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
    with ImpactIndex.open(write(tmp_path / "plain", SPELT, language=None)) as plain:
        spelling = Spelling(plain)
        assert (spelling.corrections(["bycicle"]), spelling.completions("ch", 9)) == ([""], [])


def test_a_title_or_text_that_is_null_or_missing_is_empty(tmp_path: Path) -> None:
    rows = (np.array([0, 0, 0, 0]), np.empty(0, np.int32), np.empty(0, np.int32))
    records: list[Any] = [{"title": None, "text": "fox"}, {"title": "fox"}, {"title": None, "text": ""}]
    with ImpactIndexWriter(tmp_path / "good", language="english") as writer:
        writer.add(["a", "b", "c"], [b"{}"] * 3, *rows, records=records)
    with ImpactIndex.open(tmp_path / "good") as index:
        assert Spelling(index).completions("fo", 9) == [("fox", 2)]
