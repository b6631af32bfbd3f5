"""BM25 beside the other modes, from Python and from the command line."""

from tests.client.both import Client
from tests.support.commands import run_command


def test_modes_are_told_and_answered(client: Client) -> None:
    modes = client.info().modes
    assert modes == ["hybrid", "dense", "sparse", "bm25"]
    answers = {mode: client.search("play music from the terminal", mode=mode, k=5) for mode in modes}
    assert [answer.mode for answer in answers.values()] == modes
    assert len({tuple(hit.id for hit in answer.hits) for answer in answers.values()}) == 4
    first = answers["bm25"].hits[0]
    assert (first.id, first.dense, first.sparse) == ("music", None, None)


def test_the_command_shows_hits_without_legs(url: str) -> None:
    done = run_command("search", "music terminal", "--url", url, "--mode", "bm25", "--timeout-s", "120")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "  1. Terminal music player"
    assert "dense" not in done.stdout
    assert " bm25, task default; " in lines[-1]
