import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.corpus.folder import titled, write_text_corpus
from lightretriever.artifacts.corpus.passages import Limit
from lightretriever.artifacts.corpus.passages import passages as passages_of
from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES
from lightretriever.artifacts.errors import CorpusError, DiskError
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from tests.support.biencoder import save_biencoder
from tests.support.commands import Done, run_command
from tests.support.wordings import raises

LONG = "\n\n".join(f"Paragraph {number} has these six words." for number in range(1, 6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of text files, and of what is none."""
    files = {
        "a.md": b"Before\n\n# The title #\n\nThe text.\n",
        "b.TXT": b"\xef\xbb\xbfOne line.\r\nAnother.\r\n",
        "sub/deep/c.md": f"# Long\n\n{LONG}".encode(),
        "sub/ümlaut name.txt": "grün".encode(),
        "picture.png": b"\x89PNG",
        ".hidden.md": b"hidden",
        ".git/d.md": b"hidden",
    }
    for name, content in files.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "texts"


def lines(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in content.splitlines()]


def entry(path: str, title: str, text: str, passage: str = "") -> dict[str, str]:
    """A document of a file, or a passage of it."""
    folder = str(PurePosixPath(path).parent)
    return {"_id": path + passage, "title": title, "text": text, "path": path, "folder": folder}


def run(*arguments: str | Path) -> Done:
    return run_command("corpus", *arguments)


def test_files_become_documents(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "corpus.jsonl.gz"
    written = write_text_corpus(folder, output, limit=Limit(14))
    parts = LONG.split("\n\n")
    passages = ["\n\n".join(parts[start : start + 2]) for start in (0, 2, 4)]
    assert lines(output) == [
        entry("a.md", "The title", "Before\n\n\nThe text."),
        entry("b.TXT", "b", "One line.\nAnother."),
        *(entry("sub/deep/c.md", "Long", text, f"#{number}") for number, text in enumerate(passages, start=1)),
        entry("sub/ümlaut name.txt", "ümlaut name", "grün"),
    ]
    assert (written.documents, written.texts, written.skipped.count, written.passed_over) == (6, 4, 0, 3)
    documents = list(Corpus(output, fields={"folder": "keyword", "path": "keyword"}))
    assert [document.id for document in documents] == [line["_id"] for line in lines(output)]


def test_the_same_files_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_text_corpus(folder, tmp_path / "one.jsonl.gz", limit=Limit(14))
    os.utime(folder / "a.md", (1, 1))
    write_text_corpus(folder, tmp_path / "other.jsonl.gz", limit=Limit(14))
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "other.jsonl.gz").read_bytes()
    write_text_corpus(folder, tmp_path / "plain.jsonl", limit=Limit(14))
    assert lines(tmp_path / "plain.jsonl") == lines(tmp_path / "one.jsonl.gz")


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        ("text\n## Second level\nmore", "name", "text\n## Second level\nmore"),
        ("\n## Second level\n# First\nmore", "Second level", "\n# First\nmore"),
        ("text\n# First level\nmore", "First level", "text\nmore"),
        ("---\ntitle: Grinding\n# no title\n---\n# Heading\ntext", "Grinding", "# Heading\ntext"),
        ("---\ntags: [a]\n...\n# Heading\ntext", "Heading", "text"),
        ('+++\ntitle = "Pour-over"\n+++\n\n## Water\n', "Pour-over", "\n## Water\n"),
        ("---\nA text below a rule\n---\nmore", "name", "---\nA text below a rule\n---\nmore"),
        ("---\n{{ template }}: [\n---\n# T", "T", "---\n{{ template }}: [\n---"),
        ("My title\n---\ntext", "My title", "text"),
        ("text\n\nMy title\n---\ntext", "name", "text\n\nMy title\n---\ntext"),
        ("text\n\nA title\nof two lines\n===\nmore", "A title of two lines", "text\n\nmore"),
        ("> # quoted\n\n- # listed\n\n# T", "T", "> # quoted\n\n- # listed\n"),
    ],
)
def test_the_first_heading_is_the_title(content: str, title: str, text: str) -> None:
    assert titled(PurePosixPath("folder/name.md"), content)[:2] == (title, text)
    assert titled(PurePosixPath("folder/name.txt"), content) == ("name", content, [])


def test_a_long_run_of_blanks_takes_no_longer() -> None:
    """It would not end in a lifetime if the time grew faster than the line."""
    line = "# " + " \t" * 100_000 + "x" + " #" * 100_000 + "y"
    assert titled(PurePosixPath("a.md"), line) == (line[2:].strip(), "", [])


def test_bad_files_are_named_together_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    (folder / "latin.txt").write_bytes("für".encode("latin-1"))
    (folder / "nothing.md").write_text(" \n\n")
    (folder / os.fsdecode(b"\xfc.md")).write_text("text")
    (folder / "half.md").write_text('---\ntitle: "\\ud800"\n---\ntext')
    (folder / "title.md").write_text(f"# {'t' * MAX_DOCUMENT_BYTES}\n\ntext")
    with (folder / "huge.txt").open("wb") as huge:
        huge.truncate((1 << 30) + 1)
    os.mkfifo(folder / "pipe.md")
    for name, target in (("again.md", "a.md"), ("itself.txt", "itself.txt"), ("sub/round", ".."), (".git/round", "..")):
        (folder / name).symlink_to(target)
    done = run(folder, tmp_path / "corpus.jsonl.gz")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    for word in (
        f"{folder}/latin.txt: not UTF-8 (byte 1 is 0xfc); convert it, as with iconv",
        f"{folder}/nothing.md: empty",
        f"{folder}/half.md: a lone surrogate ('\\ud800') is no valid text",
        f"{folder}/title.md: a document has at most 67,108,864 bytes, this one has 67,108,9",
        f"{folder}/huge.txt: at most 1,073,741,824 bytes are possible, it has 1,073,741,825; cut it up",
        f"{folder}/pipe.md: no regular file",
        f"{folder}/\\xfc.md: this path is not UTF-8; rename it",
        *(f"{folder}/{name}: a link; it is not followed" for name in ("again.md", "itself.txt", "sub/round")),
        "--skip-bad",
    ):
        assert word in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


def test_bad_files_are_left_out_on_request_and_counted(folder: Path, tmp_path: Path) -> None:
    for number in range(25):
        (folder / f"nothing{number:02}.md").write_text("")
    (folder / "line\nbreak.md").write_text("text")
    (tmp_path / "secret.txt").write_text("secret")
    for number, target in enumerate((f"{tmp_path}/secret.txt", "/dev/zero", ".hidden.md")):
        (folder / f"link{number}.txt").symlink_to(target)
    done = run(folder, tmp_path / "corpus.jsonl.gz", "--skip-bad", "--words", "14", "--json")
    summary = json.loads(done.stdout)
    assert (summary["texts"], summary["skipped"], len(summary["skipped_files"])) == (4, 29, 20)
    assert all(f"skipped: {reason}\n" in done.stderr for reason in summary["skipped_files"])
    found = lines(tmp_path / "corpus.jsonl.gz")
    assert len(found) == 6
    assert not any("secret" in line["text"] for line in found)


def test_what_is_there_is_replaced_on_request_alone(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "corpus.jsonl"
    output.write_text("old")
    with raises(CorpusError, naming="corpus.jsonl"):
        write_text_corpus(folder, output, limit=Limit(5))
    (folder / "empty.md").write_text("")
    with raises(CorpusError, naming="empty.md"):
        write_text_corpus(folder, output, limit=Limit(5), overwrite=True)
    assert output.read_text() == "old"
    write_text_corpus(folder, output, limit=Limit(5), overwrite=True, skip_bad=True)
    assert lines(output)[0]["_id"] == "a.md"


def test_other_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")  # or a device, which a new file would replace
    for source, output, error in (
        (empty, tmp_path / "corpus.jsonl", CorpusError),
        (folder, tmp_path / "corpus.json", CorpusError),
        (folder / "a.md", tmp_path / "corpus.jsonl", CorpusError),
        (folder, folder / "a.md" / "corpus.jsonl", DiskError),
        (folder, tmp_path / "pipe.jsonl", DiskError),
    ):
        with raises(error):
            write_text_corpus(source, output, limit=Limit(5), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "pipe.jsonl", "texts"]


def test_a_stopped_command_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    for number in range(8_000):
        (folder / f"{number}.md").write_text("text " * 100)
    output = tmp_path / "new" / "corpus.jsonl"
    command = [sys.executable, "-m", "lightretriever.service.cli", "corpus", str(folder), str(output)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not output.with_name("corpus.jsonl.partial").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 143, said
    assert "The same command begins again; nothing of it is left." in said
    assert list(output.parent.iterdir()) == []


def test_what_may_not_be_looked_at_is_bad(folder: Path, tmp_path: Path) -> None:
    """A folder that may be listed, but whose files may not be looked at; and one that may not even be listed."""
    (folder / "listed").mkdir()
    (folder / "listed" / "a.md").write_text("text")
    (folder / "listed" / "sub").mkdir()
    (folder / "listed").chmod(0o644)
    (folder / "closed").mkdir(mode=0o000)
    modes = {path: mode for path in tmp_path.parents if (mode := path.stat().st_mode) & 0o011 != 0o011}
    for path, mode in modes.items():
        path.chmod(mode | 0o011)
    tmp_path.chmod(0o777)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65_534)
        with pytest.raises(CorpusError) as caught:
            write_text_corpus(folder, tmp_path / "corpus.jsonl", limit=Limit(5))
        written = write_text_corpus(folder, tmp_path / "corpus.jsonl", limit=Limit(14), skip_bad=True)
        with raises(DiskError, naming="corpus.jsonl"):
            write_text_corpus(folder, folder / "closed" / "corpus.jsonl", limit=Limit(5))
    finally:
        os.seteuid(user)
        for path, mode in modes.items():
            path.chmod(mode)
        (folder / "listed").chmod(0o755)
        (folder / "closed").chmod(0o755)
    assert f"{folder}/listed/a.md: can't be read (Permission denied)" in caught.value.message
    assert f"{folder}/listed/sub: can't be looked into (Permission denied)" in caught.value.message
    assert f"{folder}/closed: can't be looked into (Permission denied)" in caught.value.message
    assert (written.texts, written.skipped.count) == (4, 3)


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
