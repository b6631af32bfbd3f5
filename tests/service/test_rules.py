"""Rules: synonyms, and documents pinned or hidden for a query, from a file that is read again when it changes."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections.collections import Collections
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.rules import RulesFile
from lightretriever.service.settings import Settings
from tests.service.conftest import SETTINGS
from tests.service.live import warm
from tests.support.asking import ask, ids
from tests.support.tiny import BundleOf
from tests.support.waiting import wait_until
from tests.support.wordings import raises

RULES = """
synonyms:
  - {words: [tunes, music files], weight: 0.5}
  - words: [shell]
    add: [terminal, "日本語 …"]
pinned:
  - {query: Play  MUSIC, documents: [cjk, nobody, doc-60, doc-13]}
  - {contains: [chess, games], documents: [doc-60]}
  - {query: only elsewhere, documents: [greek], collections: [other]}
hidden:
  - {contains: [music], documents: [music, doc-13]}
"""
MANY = [f"word{number}" for number in range(50)]


@pytest.fixture(scope="module")
def client(bundle_of: BundleOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    with (
        warm(bundle_of("words"), SETTINGS.model_copy(update={"rules": rules})) as engine,
        TestClient(create_app(engine)) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
@pytest.mark.parametrize("fusion", ["linear", "rrf"])
def test_pinned_documents_come_first_and_hidden_ones_never(client: TestClient, mode: str, fusion: str) -> None:
    answer = ask(client, "play music", mode=mode, fusion={"method": fusion}, k=20, explain=True)
    assert ids(answer)[:2] == ["cjk", "doc-60"]
    assert len(answer["hits"]) == 20
    assert len({*ids(answer)}) == 20
    assert not {"music", "doc-13"} & {*ids(answer)}
    assert answer["rules"] == {"synonyms": [], "pinned": ["cjk", "doc-60"], "hidden": 2}
    assert [hit["rank"] for hit in answer["hits"]] == list(range(1, 21))
    notes = [hit["explanation"].get("note") for hit in answer["hits"]]
    assert notes == ["A rule puts this document first for this query."] * 2 + [None] * 18
    pages = [ask(client, "play music", mode=mode, fusion={"method": fusion}, k=4, offset=at) for at in range(0, 20, 4)]
    assert [one for page in pages for one in ids(page)] == ids(answer)


def test_rules_go_with_filters_groups_and_an_order(client: TestClient, words_client: TestClient) -> None:
    with_rules = ids(ask(client, "play music", mode="sparse", k=50))
    others = ids(ask(words_client, "play music", mode="sparse", k=100))
    assert with_rules[2:] == [one for one in others if one not in ("cjk", "doc-60", "music", "doc-13")][:48]
    filtered = ask(client, "PLAY music", filter={"field": "year", "gte": 2001})
    assert filtered["rules"]["pinned"] == ["doc-60"]
    assert ids(filtered)[0] == "doc-60"
    assert "cjk" not in ids(filtered)
    ordered = ask(client, "play music", sort={"field": "year", "order": "desc"}, k=50)
    years = [hit["fields"]["year"] for hit in ordered["hits"]]
    assert years == sorted(years, reverse=True)
    assert ordered["rules"]["pinned"] == []
    assert not {"music", "doc-13"} & {*ids(ordered)}
    assert ids(ask(client, "play music", group_by="year", k=5))[:2] == ["cjk", "doc-60"]
    assert ids(ask(client, "large games of CHESS"))[0] == "doc-60"  # words that all have to be there
    for query in ("large game of chess", "only elsewhere"):
        assert "rules" not in ask(client, query)


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
def test_synonyms_count_by_their_weights_in_both_legs(client: TestClient, mode: str) -> None:
    answer = ask(client, "search tunes", mode=mode, explain=True)
    for hit in answer["hits"]:
        words = hit["explanation"]["words"]
        assert [word["word"] for word in words] == ["search", "tunes", "music", "files"]
        for word, weight in zip(words, (1.0, 1.0, 0.25, 0.25), strict=True):
            assert {part["weight"] for part in word["tokens"] + word["terms"]} <= {weight}
        for leg in ("dense", "sparse"):
            if hit[leg] is not None and mode in (leg, "hybrid"):
                shares = sum(word[leg] for word in words)
                assert shares == pytest.approx(hit[leg]["score"], rel=1e-4, abs=1e-4)
    assert answer["rules"] == {"synonyms": [{"text": "music files", "weight": 0.25}], "pinned": [], "hidden": 0}
    back = ask(client, "read files, music files too")
    assert back["rules"]["synonyms"] == [{"text": "tunes", "weight": 0.5}]
    assert "rules" not in ask(client, "files of tune")


@pytest.mark.parametrize(
    ("query", "rules", "expected"),
    [
        ("terminal", [("terminal", 0.5, "console", "command line")], {"console": 1 / 6, "command line": 1 / 6}),
        ("terminal", [("terminal", 0.25, "console")], {"console": 0.25}),
        ("the", [("the", 1, "console")], {"console": 0.5}),
        ("terminal music", [("terminal", 1, "console"), ("music", 3, "sound")], {"console": 0.5, "sound": 0.5}),
        ("terminal music", [("terminal", 1, f"word{n}") for n in range(4)], {f"word{n}": 0.25 for n in range(4)}),
        ("terminal music player", [("terminal", 10, "console")], {"console": 0.5}),  # as much as for "terminal" alone
        ("the terminal music", [("the", 10, "console")], {"console": 0.5}),
        ("operating system", [("operating system", 10, "console")], {"console": 1}),
        ("edit text files", [("files", 0.5, "one two three")], {"one two three": 1 / 6}),
        ("edit text files", [("files", 1, *MANY)], dict.fromkeys(MANY, 0.5 / 50)),
        ("終端", [("終端", 1, "コンソール")], {"コンソール": 0.2}),
    ],
)
def test_added_words_never_outweigh_the_query(
    tmp_path: Path, query: str, rules: list[tuple[str, float, str]], expected: dict[str, float]
) -> None:
    content = [{"words": [word], "weight": weight, "add": added} for word, weight, *added in rules]
    write(tmp_path / "rules.json", {"synonyms": content})
    assert dict(RulesFile(tmp_path / "rules.json").value.of(query)[0]) == pytest.approx(expected)


def test_what_the_query_has_is_not_added(client: TestClient) -> None:
    assert ask(client, "tunes in files named music files")["rules"]["synonyms"] == []
    found = ask(client, "shell", mode="sparse")
    assert [one["text"] for one in found["rules"]["synonyms"]] == ["terminal", "日本語 …"]
    assert found["hits"]


def test_a_long_query_of_one_word_is_read_as_fast_as_another(tmp_path: Path) -> None:
    phrases = ["os", *(f"operating system {number}" for number in range(49))]
    documents = [{"contains": ["os", f"word{number}"], "documents": ["cjk"]} for number in range(1000)]
    write(tmp_path / "rules.json", {"synonyms": [{"words": phrases}], "pinned": documents})
    rules, started = RulesFile(tmp_path / "rules.json"), process_time()
    added, _, _ = rules.value.of("os " * 3_333)
    assert process_time() - started < 1
    assert len(added) == 49


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("synonyms: [", "not YAML: "),
        ("- a", "line 1: the file can't be ['a']: "),
        ("pinned:\n  - {query: a, documents: [1]}", "line 2: pinned.0.documents.0 can't be 1: "),
        ("pinned:\n  - query: a\n    documents: []", "line 3: pinned.0.documents can't be []: "),
        ("pinned:\n  - {documents: [a]}", "give query or contains, one of the two"),
        ("pinned:\n  - {query: '?!', documents: [a]}", "line 2: pinned.0.query can't be '?!': "),
        ("hidden:\n\n  - {query: a, document: [a]}", "line 3: hidden.0.document"),
        ("synonyms:\n  - {words: [a]}", "line 2: synonyms.0 can't be {'words': ['a']}: one word alone has no synonym"),
        ("synonyms:\n  - words: [a, b]\n    weight: -1", "line 3: synonyms.0.weight can't be -1: "),
        ("boosts: []", "line 1: boosts: there is no such key."),
        ("x" * (1 << 20) + "y", "the rules can't be read: it has more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_can_not_be_used_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        RulesFile(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "Correct the file" in str(caught.value)


def test_a_missing_file_ends_the_start(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with raises(SettingsError, naming="rules.yaml"):
        SearchEngine.open(tiny_bundle, Settings(rules=tmp_path / "rules.yaml"))


def write(path: Path, rules: object) -> None:
    """Replace a file in one step."""
    path.with_suffix(".new").write_text(rules if isinstance(rules, str) else json.dumps(rules))
    path.with_suffix(".new").replace(path)


def pinned(client: TestClient, path: str = "") -> str:
    return ids(client.post(f"{path}/search", json={"query": "text"}).json())[0]


def test_a_changed_file_is_read_again(tiny_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.json"
    write(path, {"pinned": [{"query": "text", "documents": ["cjk"], "collections": ["one"]}]})
    with Collections.open({"one": tiny_path, "two": tiny_path}, SETTINGS.model_copy(update={"rules": path})) as opened:
        for holder in opened:
            holder.engine.warm_up()
        with TestClient(create_app(opened)) as client:
            assert pinned(client) == "cjk"
            assert pinned(client, "/collections/two") != "cjk"
            write(path, {"pinned": [{"query": "text", "documents": ["greek"]}]})
            wait_until(lambda: pinned(client) == "greek")
            assert "warning" not in client.get("/readyz").json()
            assert "lightretriever_rules_refused 0.0" in client.get("/metrics").text
            write(path, "pinned:\n  - {query: text}")
            wait_until(lambda: "warning" in client.get("/readyz").json())
            ready = client.get("/readyz").json()
            assert "line 2: pinned.0.documents: Field required" in ready["warning"]
            assert "The rules before stay in force." in ready["warning"]
            assert ready["status"] == "ready"
            assert ready["warning"].count("line 2") == 1  # of both collections
            assert "lightretriever_rules_refused 1.0" in client.get("/metrics").text
            assert "rules stay as they were" in caplog.text
            assert pinned(client) == "greek"
            write(path, {"pinned": [{"contains": ["text"], "documents": ["special"]}]})
            wait_until(lambda: pinned(client) == "special")
            wait_until(lambda: "lightretriever_rules_refused 0.0" in client.get("/metrics").text)
