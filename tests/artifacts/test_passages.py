import json
import shutil
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.corpus.folder import titled, write_text_corpus
from lightretriever.artifacts.corpus.passages import Limit
from lightretriever.artifacts.corpus.passages import passages as passages_of
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from tests.support.biencoder import save_biencoder
from tests.support.commands import run_command

ROOT = Path(__file__).resolve().parents[2]


def passages(text: str, words: int) -> list[str]:
    return [one.text for one in passages_of(text, Limit(words))]


TEXTS = st.text(alphabet=st.sampled_from("ab.!# \n\t"), max_size=200)
SCRIPTS = st.text(alphabet=st.sampled_from("ab.!# \n。、日本ไทยก็ភាសា"))


@given(TEXTS | SCRIPTS, st.integers(1, 12))
def test_no_sign_is_lost_and_no_passage_is_too_long(text: str, words: int) -> None:
    found = passages(text, words)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(part == part.strip() and 1 <= len(part.split()) <= words for part in found)
    if text.isascii():
        assert [word for part in found for word in part.split()] == text.split()
    place = 0
    for part in found:  # as it stands in the text
        place = text.index(part, place) + len(part)


@pytest.mark.parametrize(
    ("paragraph", "most"),
    [
        ("办公室的咖啡机每天早上七点由值班人员打开，水箱要先装满。咖啡豆放在左边的柜子里，用完请写在清单上。", 200),
        ("これは検索エンジンのための短い文書です。カタカナもあります。", 200),
        ("ภาษาไทยไม่มีช่องว่างระหว่างคำ" * 3, 1_200),
        ("𗼇𗼈𗼉𗼊", 200),
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
    three = f"## S{between}### T{between}#### U\n\np"
    assert passages(f"a b\n\n{three}", 7) == ["a b", three]


def test_a_later_passage_has_the_headings_above_it(tmp_path: Path) -> None:
    paragraphs = [f"word {'and another ' * 4}{number}" for number in range(6)]
    manual, install, *linux_and_use = paragraphs
    parts = ["# Manual", manual, "## Install", install, "### Linux", *linux_and_use[:2], "## Use", *linux_and_use[2:]]
    body = "\n\n".join(parts)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text(body)
    (tmp_path / "texts" / "b.txt").write_text(body)
    write_text_corpus(tmp_path / "texts", tmp_path / "corpus.jsonl", limit=Limit(18))
    found = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    markdown = [(one["title"], one["text"].split("\n")[0]) for one in found if one["path"] == "a.md"]
    assert markdown == [
        ("Manual", paragraphs[0]),
        ("Manual", "## Install"),
        ("Manual / Install", "### Linux"),
        ("Manual / Install / Linux", paragraphs[3]),
        ("Manual", "## Use"),
        ("Manual / Use", paragraphs[5]),
    ]
    assert {one["title"] for one in found if one["path"] == "b.txt"} == {"b"}


def test_headings_that_are_too_long_are_left_out_from_the_uppermost_on() -> None:
    text = f"## {'long ' * 30}\n\n### Short\n\n{'word ' * 40}"
    content = f"# T\n{text}"
    found = passages_of(text, Limit(36), *titled(PurePosixPath("a.md"), content)[::2])
    assert [one.title for one in found] == ["T", "T / Short", "T / Short"]


def test_no_passage_is_longer_than_the_model_reads(tmp_path: Path) -> None:
    """Technical text has more tokens than words: this project's own pages, and a model of 64 tokens, few of them
    whole words."""
    model = save_biencoder(tmp_path / "tiny-bi", vocabulary=150)
    encoder = load_biencoder(str(model), device="cpu")
    (tmp_path / "texts").mkdir()
    for name in ("service.md", "pipeline.md", "limits.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "texts")
    (tmp_path / "texts" / "title.md").write_text(f"# {'A long title ' * 8}\n\n{'text below it. ' * 90}")
    done = run_command("corpus", tmp_path / "texts", tmp_path / "corpus.jsonl", "--model", model)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    read = [f"{one['title']} {one['text']}" for one in found if one["path"] != "title.md"]
    lengths = [len(encoder.tokenizer.encode(text)) + 2 for text in read]
    assert 0.5 * 64 * len(lengths) < sum(lengths)
    assert not any(encoder.are_cut(read))
    for path in ("service.md", "limits.md"):
        _, text, _ = titled(PurePosixPath(path), (ROOT / "docs" / path).read_text())
        joined = "".join(one["text"] for one in found if one["path"] == path)
        assert "".join(joined.split()) == "".join(text.split())
