"""`lightretriever search` as a user has it: a process, its output and where that goes, its exit status; what the client
loads, and that the list client.txt is all it takes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import httpx2
import pytest
from packaging.utils import canonicalize_name

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.commands.search import lines as lines_of
from lightretriever.service.schemas import SearchResponse
from tests.client.scripted import FOUND, HIT, Scripted, answer, hang_up, problem
from tests.service.live import live_bundles
from tests.service.process import ROOT
from tests.support.commands import Done, run_command
from tests.support.keys import keys_file
from tests.support.written import ENTRIES, KEY


def search(*arguments: str) -> Done:
    return run_command("search", *arguments)


def apart(*arguments: str, shell: str = '"$@"', **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, by a line of the shell."""
    command = ["bash", "-o", "pipefail", "-c", shell, "bash", sys.executable, *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


CLI = ("-m", "lightretriever.service.cli")


def test_hits_are_readable_in_a_pipe(url: str) -> None:
    done = apart(*CLI, "search", "play music", "--url", url, "--k", "3", "--timeout-s", "120")
    assert (done.returncode, done.stderr) == (0, "")
    body = {"query": "play music", "k": 3, "snippets": {"fields": ["text"], "length": 300}}
    response = SearchResponse.model_validate_json(httpx2.post(f"{url}/search", json=body, timeout=90).content)
    lines = done.stdout.splitlines()
    assert lines[:-1] == [*lines_of(response)][:-1]
    assert "\x1b" not in done.stdout
    assert [line for line in lines if line != line.rstrip()] == []
    assert lines[-1].startswith(f"3 hits of {response.candidates} candidates, hybrid, task default; ")
    assert all(f"{stage} " in lines[-1] for stage in ("tokenize", "encode", "dense", "sparse", "rescore", "fuse"))


def test_any_field_can_be_set_and_json_is_the_answer_as_it_came() -> None:
    body = json.dumps({**FOUND, "newer": "ü\n \\ud83c"}, ensure_ascii=False).encode()
    with Scripted(answer(body)) as server:
        fields = ("--k", "4", "--mode", "dense", "--set", "task=fact", "--set", 'fields=["title"]', "--set", "offset=3")
        done = search("play music", "--url", server.url, "--json", *fields)
    assert (done.returncode, done.stdout.encode(), done.stderr) == (0, body + b"\n", "")
    sent = {"query": "play music", "k": 4, "mode": "dense", "task": "fact", "fields": ["title"], "offset": 3}
    assert json.loads(server.seen[0]["body"]) == sent


def test_no_hits_is_status_1() -> None:
    with Scripted(answer({**FOUND, "hits": []})) as server:
        done = search("music", "--url", server.url)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("no hits\n0 hits of 1 candidates")
        assert search("music", "--url", server.url, "--json").returncode == 1


def test_an_error_is_one_line_and_status_2(url: str) -> None:
    for arguments, says in (
        (["--k", "0"], "k: Input should be greater than or equal to 1"),
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
    done = search("a", "--set", "filter")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no equals sign" in done.stderr


@pytest.mark.slow
def test_address_and_key_from_the_environment(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with live_bundles(tiny_bundle.path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url:
        music = (*CLI, "search", "music")
        assert apart(*music, LIGHTRETRIEVER_URL=url, LIGHTRETRIEVER_API_KEY=KEY).returncode == 0
        assert apart(*music, "--url", url, "--api-key", KEY).returncode == 0
        done = apart(*music, LIGHTRETRIEVER_URL=url, LIGHTRETRIEVER_API_KEY="wrong-key")
        assert done.returncode == 2
        assert "401 unauthorized" in done.stderr
        assert "wrong-key" not in done.stderr


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
    unproposed = {**hit(title="T", text="t", year=2000)["hits"][0], "dense": {"score": 0.25, "rank": None}}
    assert rendered({"hits": [unproposed]})[:-1] == [
        *("  1. T", "     1.0000  dense 0.25 not proposed  sparse –  id a", "     t", "     year: 2000")
    ]
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


CHINESE = "庆祝"
LOST = "error: The output can't be written: {}. Send it to another place.\n"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A service whose hits no ASCII text has."""
    hit = {**HIT, "id": CHINESE, "fields": {"title": CHINESE, "text": CHINESE * 100}}
    with Scripted(answer({**FOUND, "hits": [hit] * 500})) as server:
        yield server.url


@pytest.mark.parametrize("command", [["--help"], ["search", CHINESE], ["search", CHINESE, "--json"]])
def test_output_that_can_not_be_written_is_one_line_and_status_2(service: str, command: list[str]) -> None:
    arguments = [*CLI, *command, *(() if command == ["--help"] else ("--url", service))]
    for place, reason in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        done = apart(*arguments, shell=f'"$@" {place}')
        assert done.returncode == 2
        assert done.stderr.endswith(LOST.format(reason))
        assert "Traceback" not in done.stderr
    done = apart(*arguments, shell='"$@" | sleep 0')  # a closed pipe ends a command without a word
    assert done.returncode == 141
    assert not re.search("rror|Traceback", done.stderr)
    if command == ["search", CHINESE]:  # nor need there be a place for errors
        for ends, status in (("2>&-", 0), (">&- 2>/dev/full", 2)):
            assert apart(*arguments, shell=f'"$@" {ends}').returncode == status


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_characters_that_the_encoding_lacks_are_escaped(service: str, environment: dict[str, str]) -> None:
    done = apart(*CLI, "search", "a", "--url", service, **{"PYTHONUTF8": "0", **environment})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u5e86\u795d" in done.stdout
    wrong = apart(*CLI, "search", "a", "--url", f"http://{CHINESE}", **environment)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


SERVER_SIDE = ("numpy", "faiss", "jnius", "starlette", "uvicorn", "tokenizers", "torch", "typer", "rich")

LOADED = f"""
import sys, threading
import lightretriever.service.client
loaded = [name for name in {SERVER_SIDE} if name in sys.modules]
loaded += [name for name in sys.modules if name.startswith("lightretriever.service.client.adapters")]
assert threading.active_count() == 1, threading.enumerate()
sys.exit(", ".join(loaded) or 0)
"""

# Only what the list names may be imported, beside Python's own and this project.
ALONE = """
import sys
allowed = set(sys.argv.pop(1).split(","))
class Gate:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in allowed or top in sys.stdlib_module_names or top.startswith("_sysconfigdata"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gate())
from lightretriever.service.cli import main
main()
"""


def allowed(name: str) -> set[str]:
    lines = (ROOT / "deploy" / "requirements" / f"{name}.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    found = packages_distributions().items()
    return {"lightretriever", *(module for module, names in found if pinned & set(map(canonicalize_name, names)))}


def test_the_import_loads_no_part_of_the_server_and_starts_nothing() -> None:
    done = apart("-c", LOADED)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pinned_list_is_all_that_a_search_in_the_terminal_takes(url: str) -> None:
    words = ("search", "play music", "--url", url, "--k", "2", "--timeout-s", "120")
    done = apart("-c", ALONE, ",".join(allowed("client")), *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 hits of " in done.stdout


@pytest.mark.parametrize(("command", "package", "extra"), [("search", "httpx2", "client"), ("mcp", "mcp", "mcp")])
def test_a_missing_package_is_named_with_the_extra(command: str, package: str, extra: str) -> None:
    packages = ",".join(allowed(extra) - {package})
    done = apart("-c", ALONE, packages, command, *(["play music"] if command == "search" else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"needs {package}, which is not installed. Install the extra" in done.stderr
    assert f"pip install 'lightretriever-search[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert apart("-c", ALONE, packages, "--help").returncode == 0  # all other commands go on
