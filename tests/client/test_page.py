"""docs/client.md: its examples run, over a real server, and its tables name what there is."""

import inspect
import re
from pathlib import Path

import pytest

from lightretriever.service.client import AnswerError, AsyncSearchClient, SearchClient
from lightretriever.service.client.documents import SCORES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
ADDRESSES = ("http://127.0.0.1:8080", "https://search.example.org/api")


def test_the_examples_run_from_top_to_bottom(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("queries.txt").write_text("play music\ntext editor\n")
    names: dict[str, object] = {}
    said = []
    for example in EXAMPLES:
        code = example.replace('"…"', '"a-key"').replace("timeout_s=5", "timeout_s=120")
        for address in ADDRESSES:
            code = code.replace(address, url)
        exec(compile(code, "docs/client.md", "exec"), names)
        said.append(capsys.readouterr().out)
    assert len(said) == 8
    assert len(said[0].splitlines()) == 5
    assert len(said[1].split()) == 2
    assert [line.count("'") for line in said[2].splitlines()] == [200, 200]
    assert said[4].startswith("422 invalid_request k: offset + k is 5000")
    assert [len(names[name]) for name in ("documents", "nodes")] == [5, 5]  # type: ignore[arg-type]


def test_the_calls_are_those_of_both_clients() -> None:
    documented = set(re.findall(r"^\| `(\w+)\(", TEXT, flags=re.MULTILINE))
    for client, closing in ((SearchClient, {"close"}), (AsyncSearchClient, {"aclose"})):
        public = {name for name, _ in inspect.getmembers(client, inspect.isfunction) if name[0] != "_"}
        assert public - closing - {"call", "send"} == documented


def test_what_errors_and_hits_tell_is_named() -> None:
    error = AnswerError.unexpected(500, "d")
    told = {name for name in vars(error) if name not in ("passing", "message", "remedy")}
    (row,) = re.findall(r"^\| `AnswerError` \|.*$", TEXT, flags=re.MULTILINE)
    assert {name for name in told if f"`{name}`" not in row} == set()
    assert [name for name in SCORES if f"`{name}`" not in TEXT] == []
