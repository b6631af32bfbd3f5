from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightretriever.artifacts.corpus.folder import passages

TEXTS = st.text(alphabet=st.sampled_from("ab.!# \n\t"), max_size=200)


@given(TEXTS, st.integers(1, 12))
def test_every_word_is_in_one_passage_in_order_and_none_is_too_long(text: str, words: int) -> None:
    found = passages(text, words)
    assert [word for part in found for word in part.split()] == text.split()
    assert all(1 <= len(part.split()) <= words for part in found)
    assert all(part == part.strip() for part in found)
    place = 0
    for part in found:  # as it stands in the text
        place = text.index(part, place) + len(part)


@given(st.text(alphabet=st.sampled_from("ab.!# \n。、日本ไทยก็ភាសា")), st.integers(1, 12))
def test_no_sign_is_lost_in_any_script(text: str, words: int) -> None:
    assert "".join("".join(passages(text, words)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("paragraph", "most"),
    [
        ("办公室的咖啡机每天早上七点由值班人员打开，水箱要先装满。咖啡豆放在左边的柜子里，用完请写在清单上。", 200),
        ("これは検索エンジンのための短い文書です。カタカナもあります。", 200),
        ("ภาษาไทยไม่มีช่องว่างระหว่างคำ" * 3, 1_200),
        ("ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງ" * 3, 1_200),
        ("ភាសាខ្មែរមិនមានដកឃ្លា" * 3, 1_500),
        ("မြန်မာဘာသာစကားတွင်" * 3, 1_500),
        ("བོད་ཡིག་ནི་བོད་སྐད་འབྲི་བྱེད་ཀྱི་ཡི་གེ་ཞིག་ཡིན།" * 2, 1_500),
        ("ꦲꦏ꧀ꦱꦫꦗꦮꦲꦶꦏꦸꦲꦏ꧀ꦱꦫ" * 4, 1_500),
        ("ᬅᬓ᭄ᬱᬭᬩᬮᬶᬲᬤ᭄" * 6, 1_500),
        ("ꆈꌠꁱꂷ" * 2, 200),
        ("𗼇𗼈𗼉𗼊", 200),
        ("𠀀𠀁𠀂", 200),
        ("x" * 5_000, 15_000),
    ],
)
def test_scripts_without_spaces_and_endless_words_are_cut(paragraph: str, most: int) -> None:
    text = paragraph * 40
    found = passages(text, 150)
    assert len(found) > 1 or len(text) < 150
    assert "".join(found) == text
    assert max(map(len, found)) <= most


def test_a_chinese_text_is_cut_behind_its_sentences() -> None:
    assert passages("今天天气好。我们去公园！你来吗？", 9) == ["今天天气好。", "我们去公园！你来吗？"]
    assert passages("한국어 문장은 띄어 씁니다", 3) == ["한국어 문장은 띄어", "씁니다"]


@given(TEXTS, st.integers(1, 12))
def test_two_neighbours_do_not_fit_into_one(text: str, words: int) -> None:
    sizes = [len(part.split()) for part in passages(text.replace("#", ""), words)]
    assert all(one + other > words for one, other in pairwise(sizes))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" \n\n", []),
        ("one two three", ["one two three"]),
        ("one two\n\nthree four\n\nfive six", ["one two\n\nthree four", "five six"]),
        ("one two\nthree\n \nfour", ["one two\nthree\n \nfour"]),
        ("one two three\n\nfour five", ["one two three", "four five"]),
        ("one\n\ntwo three\nfour\nfive six", ["one\n\ntwo three\nfour", "five six"]),
        ("one two three. Four five! Six", ["one two three.", "Four five! Six"]),
        ("one two three four five six", ["one two three four", "five six"]),
        ("one two\n\n## Three\n\nfour", ["one two", "## Three\n\nfour"]),
        ("one\n\n# A heading that is long\n\ntwo", ["one\n\n# A heading", "that is long\n\ntwo"]),
        ("one two three\n\n# End", ["one two three", "# End"]),
    ],
)
def test_texts_are_cut_where_it_hurts_least(text: str, found: list[str]) -> None:
    assert passages(text, 4) == found


@pytest.mark.parametrize("between", ["\n\n", "\n", "\n \n"])
def test_headings_in_a_row_go_with_what_is_below(between: str) -> None:
    text = f"a b c d\n\n## S{between}### T\n\np q r s"
    assert passages(text, 8) == ["a b c d", f"## S{between}### T\n\np q r s"]
    assert passages(f"a b\n\n## S{between}### T{between}#### U\n\np", 7) == [
        "a b",
        f"## S{between}### T{between}#### U\n\np",
    ]
