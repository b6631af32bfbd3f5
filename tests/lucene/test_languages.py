"""The words of every language: stems, stop words, other scripts, and names with signs."""

from typing import Final, get_args

import pytest

from lightretriever.artifacts.sparse.vocabulary import Language, words_of
from tests.support.wordings import raises

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
