"""Near-duplicate queries against planted ones."""

import pytest

from lightretriever.artifacts.training.data import content

QUERIES = [
    "What is the capital of the largest province of Canada?",
    "who founded the muslim brotherhood ?",
    "real-time strategy game of ancient warfare",
    "0-dimensional biomaterials show inductive properties.",
    "搜索引擎的短文档是什么",
    "How is the flow over a flat plate affected by the viscosity of the gas?",
]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    "edit",
    [
        str,
        str.upper,
        lambda text: f"  {text.rstrip('?. ')} !!",
        lambda text: text.replace(" ", " , "),
        lambda text: text.replace("-", " "),
        lambda text: f"the {text}",
        lambda text: text.replace("What is the", "What was").replace("How is the", "Why is a"),
        lambda text: " ".join(reversed(text.replace("?", " ").split())),
    ],
    ids=["exact", "upper", "punctuation", "commas", "hyphens", "the", "function-words", "order"],
)
def test_planted_duplicates_are_found(query: str, edit: object) -> None:
    edited = edit(query)  # type: ignore[operator]
    assert [one for one in QUERIES if content(one) == content(edited)] == [query]


def test_plurals_do_not_count() -> None:
    assert content("strategy games of ancient warfare") == content("strategy game of ancient warfare")
    assert content("Glass glasses") == "glass glasse"


def test_another_content_word_is_another_query() -> None:
    assert content(QUERIES[0]) != content(QUERIES[0].replace("Canada", "Australia"))


def test_texts_without_words_differ_by_their_signs() -> None:
    assert content("???") == content("???") != content("→ ☃ →")
    assert content("who is it") != content("what was that")
