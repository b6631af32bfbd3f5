"""`lightretriever search` as a user has it: a process, its output, its exit status."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.schemas import SearchResponse
from lightretriever.service.terminal import lines as lines_of
from tests.client.scripted import FOUND, HIT, Scripted, answer, hang_up, problem
from tests.service.live import live_bundles
from tests.support.commands import Done, run_command
from tests.support.keys import keys_file
from tests.support.written import ENTRIES, KEY

ROOT = Path(__file__).resolve().parents[2]


def search(*arguments: str) -> Done:
    return run_command("search", *arguments)


def search_apart(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own."""
    command = [sys.executable, "-m", "lightretriever.service.cli", "search", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=False)


def test_hits_are_readable_in_a_pipe(url: str) -> None:
    done = search_apart("play music", "--url", url, "--k", "3", "--timeout-s", "120")
    assert (done.returncode, done.stderr) == (0, b"")
    body = {"query": "play music", "k": 3}
    response = SearchResponse.model_validate_json(httpx2.post(f"{url}/search", json=body, timeout=90).content)
    lines = done.stdout.decode().splitlines()
    assert not any(character in done.stdout.decode() for character in "\x1b\r")
    assert [line for line in lines if line != line.rstrip()] == []
    for hit in response.hits:
        assert f"{hit.rank:>3}. {hit.fields['title']}" in lines
        assert hit.dense is not None
        assert hit.sparse is not None
        (scores,) = (line for line in lines if line.endswith(f"  id {hit.id}"))
        assert scores.startswith(f"     {hit.score:.4f}  dense {hit.dense.score:.4g} ")
        for leg in (hit.dense, hit.sparse):
            assert f" {leg.score:.4g} {'not proposed' if leg.rank is None else f'#{leg.rank}'}" in scores
        assert f"     {hit.fields['text']}"[:290] in "\n".join(lines)
        assert f"     year: {hit.fields['year']}" in lines
    assert lines[-1].startswith(f"3 hits of {response.candidates} candidates, hybrid, task default; ")
    assert all(f"{stage} " in lines[-1] for stage in ("tokenize", "encode", "dense", "sparse", "rescore", "fuse"))


def test_json_is_the_answer_as_it_came() -> None:
    body = json.dumps({**FOUND, "newer": "ü\n \\ud83c"}, ensure_ascii=False).encode()
    with Scripted(answer(body)) as server:
        done = search("play music", "--url", server.url, "--json", "--k", "4", "--mode", "dense", "--task", "fact")
    assert (done.returncode, done.stdout.encode(), done.stderr) == (0, body + b"\n", "")
    assert json.loads(server.seen[0]["body"]) == {"query": "play music", "k": 4, "mode": "dense", "task": "fact"}


def test_any_field_can_be_set() -> None:
    with Scripted(answer()) as server:
        done = search("a", "--url", server.url, "--set", 'fields=["title"]', "--set", "task=fact", "--set", "offset=3")
    assert done.returncode == 0
    assert json.loads(server.seen[0]["body"]) == {"query": "a", "fields": ["title"], "task": "fact", "offset": 3}


def test_no_hits_is_status_1() -> None:
    with Scripted(answer({**FOUND, "hits": []})) as server:
        done = search("music", "--url", server.url)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("no hits\n0 hits of 1 candidates")
        assert search("music", "--url", server.url, "--json").returncode == 1


def test_an_error_is_one_line_and_status_2(url: str) -> None:
    for arguments, says in (
        (["--k", "0"], "k: Input should be greater than or equal to 1"),
        (["--set", "nope=1"], "nope: "),
        (["--set", "fields=title"], 'fields: must be a list: write ["title"]'),
        (["--set", "filter"], "has no equals sign"),
        (["--k", "1500"], "offset + k is 1500, but there are only 1000 candidates"),
        (["--url", "localhost:8080"], "Write it as in http://127.0.0.1:8080"),
        (["--timeout-s", "0"], "timeout_s is 0"),
        (["--api-key", "a b"], "characters that no key has"),
    ):
        done = search("music", "--url", url, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    with Scripted(problem(500, "search_failed", detail="No leg could answer.")) as server:
        done = search("music", "--url", server.url)
        assert (done.returncode, done.stderr) == (2, "error: No leg could answer. (500 search_failed)\n")
    with Scripted(hang_up) as server:
        done = search("music", "--url", server.url)
    assert done.returncode == 2
    assert "can't be reached" in done.stderr


@pytest.mark.slow
def test_address_and_key_from_the_environment(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with live_bundles(tiny_bundle.path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url:
        assert search_apart("music", LIGHTRETRIEVER_URL=url, LIGHTRETRIEVER_API_KEY=KEY).returncode == 0
        assert search_apart("music", "--url", url, "--api-key", KEY).returncode == 0
        done = search_apart("music", LIGHTRETRIEVER_URL=url, LIGHTRETRIEVER_API_KEY="wrong-key")
        assert done.returncode == 2
        assert b"401 unauthorized" in done.stderr
        assert b"wrong-key" not in done.stderr


def rendered(response: Mapping[str, object]) -> list[str]:
    return list(lines_of(SearchResponse.model_validate_json(json.dumps({**FOUND, **response}))))


def hit(**fields: object) -> dict[str, list[dict[str, object]]]:
    return {"hits": [{**HIT, "fields": fields}]}


def test_what_became_of_the_query_comes_first() -> None:
    changed = {"searched": "play music", "did_you_mean": "play\nmusic now", "matched": "none"}
    operators = {"excluded": ["vim", "emacs"], "phrases": {"play\nnow": False, "play music": True}}
    assert rendered({**changed, **operators, "degraded": ["sparse", "rerank"]})[:7] == [
        "degraded: sparse failed or was late and is missing here",
        "degraded: rerank failed or was late and is missing here",
        "did you mean: play music now",
        "searched for: play music",
        "without documents that have: vim, emacs",
        "not required as phrases: play now",
        "no document matches well; these are the nearest",
    ]
    assert " candidates, best match weak, " in rendered({"matched": "weak"})[-1]


def test_a_document_can_not_command_the_terminal() -> None:
    evil = "a\x1b]0;title\x07b\x9b2Jc\u202ed\r\ne [bold]f[/bold] \ud83d\ude00"
    snippet = {"text": evil, "start": 0, "marks": [[0, 5]]}
    text = "\n".join(rendered({"hits": [{**HIT, "fields": {"title": evil, "x": evil}, "snippets": {"text": snippet}}]}))
    assert not set("\x1b\x07\x9b\u202e\r") & set(text)
    assert text.count("a ]0;title b 2Jc d") == 3


def test_an_explanation_has_a_line_for_each_word() -> None:
    def word(text: str, dense: float | None, sparse: float, **changes: object) -> dict[str, object]:
        shares = {"word": text, "count": 1, "dense": dense, "sparse": sparse, "added": False}
        return {**shares, "terms": [], "tokens": [], **changes}

    words = [word("検索\x1b", -0.5, 0.0, count=2), word("plane", 0, 88, added=True), word("play", None, 1043.24)]
    explanation = {"fusion": {"dense": 0.5, "sparse": 0.5}, "words": words}
    assert rendered({"hits": [{**HIT, "explanation": explanation}]})[2:-1] == [
        "     検索 × 2  dense -0.5  sparse 0",
        "     plane  dense 0  sparse 88  added by meaning",
        "     play  sparse 1043",
    ]


def test_a_hit_without_title_or_text_is_named_by_its_id_and_long_fields_are_cut() -> None:
    assert rendered(hit())[:2] == ["  1. a", "     1.0000  dense 0.5 #1  sparse –"]
    assert "  1. a" in rendered(hit(title="", text="t", tags=["x"], n=None))
    lines = rendered(hit(title="t" * 500, text="x" * 5000, note="y" * 500))
    assert max(map(len, lines)) < 310
    assert all(f"{letter}…" in "\n".join(lines) for letter in "txy")


def test_the_part_of_a_text_with_the_query_is_asked_for_but_as_json_and_shown() -> None:
    with Scripted(answer()) as server:
        assert search("music", "--url", server.url).returncode == 0
        assert search("music", "--url", server.url, "--json", "--explain").returncode == 0
    shown, whole = (json.loads(seen["body"]) for seen in server.seen)
    assert shown == {"query": "music", "snippets": {"fields": ["text"], "length": 300}}
    assert whole == {"query": "music", "explain": True}
    snippet = {"text": "plays music\x1b[2J\non", "start": 4, "marks": [[6, 11]]}
    found = {**hit(text="and plays music...")["hits"][0], "snippets": {"text": snippet}}
    assert "     …plays music [2J on" in rendered({"hits": [found]})
    longer = {**found, "fields": {"text": "and plays music in the terminal, all day and all night"}}
    assert "     …plays music [2J on…" in rendered({"hits": [longer]})
