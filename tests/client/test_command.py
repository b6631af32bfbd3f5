"""`lightretriever search` as a user has it: a process, its output, its exit status."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client.render import show
from lightretriever.service.schemas import SearchResponse
from tests.client.scripted import FOUND, Scripted, answer, hang_up, problem
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


def test_any_field_can_be_set(url: str) -> None:
    with Scripted(answer()) as server:
        done = search("a", "--url", server.url, "--set", 'fields=["title"]', "--set", "task=fact", "--set", "offset=3")
    assert done.returncode == 0
    assert json.loads(server.seen[0]["body"]) == {"query": "a", "fields": ["title"], "task": "fact", "offset": 3}
    done = search("a", "--url", url, "--set", "filter")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no equals sign" in done.stderr


def test_no_hits_is_status_1() -> None:
    with Scripted(answer({**FOUND, "hits": []})) as server:
        done = search("music", "--url", server.url)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("no hits\n0 hits of 1 candidates")
        assert search("music", "--url", server.url, "--json").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--k", "0"], "k: Input should be greater than or equal to 1"),
        (["--set", "nope=1"], "nope: there is no such field"),
        (["--set", "fields=title"], "fields: Input should be a valid list"),
        (["--k", "1500"], "offset + k is 1500, but there are only 1000 candidates"),
        (["--url", "localhost:8080"], "Write it as in http://127.0.0.1:8080"),
        (["--timeout-s", "0"], "timeout_s is 0"),
        (["--api-key", "a b"], "characters that no key has"),
    ],
)
def test_an_error_is_one_line_and_status_2(url: str, arguments: list[str], says: str) -> None:
    done = search("music", "--url", url, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_bytes_that_are_no_text_are_an_error(url: str) -> None:
    done = search_apart(b"music \xff", "--url", url)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"unable to parse raw data as a unicode string" in done.stderr


def test_a_service_that_fails_or_is_away() -> None:
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


def rendered(response: Mapping[str, object], *, terminal: bool = False, width: int = 60) -> str:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False, _environ={}
    )
    show(console, SearchResponse.model_validate_json(json.dumps({**FOUND, **response})))
    return file.getvalue()


def hit(**fields: object) -> dict[str, list[dict[str, object]]]:
    return {"hits": [{**FOUND["hits"][0], "fields": fields}]}  # type: ignore[index]


def test_degraded_legs_come_first() -> None:
    text = rendered({"degraded": ["sparse", "dense"]})
    assert text.splitlines()[:2] == [
        "degraded: the sparse leg failed or was late and is missing here",
        "degraded: the dense leg failed or was late and is missing here",
    ]
    assert "sparse –" in text


def test_what_became_of_the_query_comes_first() -> None:
    text = rendered({"searched": "play music", "did_you_mean": "play\nmusic now", "matched": "none"})
    assert text.splitlines()[:3] == [
        "did you mean: play music now",
        "searched for: play music",
        "no document matches well; these are the nearest",
    ]
    assert " candidates, best match weak, " in rendered({"matched": "weak"})


def test_a_terminal_has_colours_and_folds_lines_below_their_beginning() -> None:
    text = rendered(hit(title="A title", text="word " * 40), terminal=True)
    assert "\x1b[1;36mA title\x1b[0m" in text
    folded = [line for line in text.splitlines() if line.strip().startswith("word")]
    assert len(folded) > 2
    assert all(line.startswith("     word") for line in folded)


def test_a_document_can_not_command_the_terminal() -> None:
    evil = "a\x1b]0;title\x07b\x9b2Jc\u202ed\r\ne [bold]f[/bold] :smile: \ud83d\ude00"
    text = rendered(hit(title=evil, text=evil, other=evil), terminal=False)
    assert not set("\x1b\x07\x9b\u202e\r") & set(text)
    assert "a ]0;title b 2Jc d e [bold]f[/bold] :smile:" in text


def test_an_explanation_has_a_line_for_each_word() -> None:
    def word(text: str, dense: float | None, sparse: float, **changes: object) -> dict[str, object]:
        shares = {"word": text, "count": 1, "dense": dense, "sparse": sparse, "added": False}
        return {**shares, "terms": [], "tokens": [], **changes}

    def lines(*words: dict[str, object]) -> list[str]:
        (first,) = hit()["hits"]
        explanation = {"fusion": {"dense": 0.5, "sparse": 0.5}, "words": words}
        return rendered({"hits": [{**first, "explanation": explanation}]}).splitlines()[2:-1]

    assert lines(
        word("play", 0.25, 1043.0), word("検索\x1b", -0.5, 0.0, count=2), word("plane", 0, 88, added=True)
    ) == [
        "     word          dense     sparse",
        "     play           0.25       1043",
        "     検索 × 2       -0.5          0",
        "     plane             0         88  added by meaning",
    ]
    assert lines(word("play", None, 7.0)) == ["     word     sparse", "     play          7"]
    assert lines(word("terminal", -0.0015724, -1.2344e-05))[1] == "     terminal  -0.001572 -1.234e-05"


def test_a_hit_without_title_or_text_is_named_by_its_id() -> None:
    assert rendered(hit()).splitlines()[:2] == ["  1. a", "     1.0000  dense 0.5 #1  sparse –"]
    assert "  1. a" in rendered(hit(title="", text="t", tags=["x"], n=None)).splitlines()


def test_the_part_of_a_text_with_the_query_is_asked_for_but_as_json_and_shown() -> None:
    with Scripted(answer(), answer()) as server:
        assert search("music", "--url", server.url).returncode == 0
        assert search("music", "--url", server.url, "--json", "--explain").returncode == 0
    shown, whole = (json.loads(seen["body"]) for seen in server.seen)
    assert shown == {"query": "music", "snippets": {"fields": ["text"], "length": 300}}
    assert whole == {"query": "music", "explain": True}
    snippet = {"text": "plays music\x1b[2J\non", "start": 4, "marks": [[6, 11]]}
    (first,) = hit(text="and plays music...")["hits"]
    found = {**first, "snippets": {"text": snippet}}
    assert "     …plays music [2J on\n" in rendered({"hits": [found]})
    assert "plays \x1b[1mmusic\x1b[0m" in rendered({"hits": [found]}, terminal=True)
    longer = {**found, "fields": {"text": "and plays music in the terminal, all day and all night"}}
    assert "on…\n" in rendered({"hits": [longer]})


def test_long_fields_are_cut() -> None:
    lines = rendered(hit(title="t" * 500, text="x" * 5000, note="y" * 500)).splitlines()
    assert max(len(line) for line in lines) < 310
    assert all(f"{letter}…" in "\n".join(lines) for letter in "txy")
