"""`lightretriever upsert` and `delete` beside a bundle, and a service that encodes, with the tiny model of a recipe."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import CorpusError, JournalError, RecipeError, ResumeError
from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import ENCODE_DOCUMENT, SearchEngine
from lightretriever.service.settings import Settings, load_settings
from tests.pipeline.test_growing import COUNT, NEW, write_recipe
from tests.service.live import live
from tests.support.commands import run, summary_of
from tests.support.keys import keys_file
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, ask, opened

PLAIN = {name: NEW[name] for name in ("title", "text")}


class Upserted:
    """A recipe that was built, its bundle, and its corpus."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.recipe, self.corpus = write_recipe(folder, kind), folder / "corpus.jsonl"
        self.write([{**line, "topic": f"t{number % 3}"} for number, line in enumerate(self.lines())])
        run("build", self.recipe)
        self.bundle = Bundle.open(folder / "bundle")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.corpus.read_text("utf-8").splitlines()]

    def write(self, lines: list[dict[str, Any]]) -> None:
        self.corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def ids(self, ids: str) -> Path:
        """Write a file of ids, with one a line."""
        file = self.corpus.with_name("ids.txt")
        file.write_text(ids)
        return file


def counts(summary: dict[str, Any]) -> dict[str, int]:
    """Return the counts of `upsert`, by its summary."""
    return {name: summary[name] for name in ("unchanged", "fields", "encoded", "created")}


class Place(Upserted):
    """With a folder for the journal."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind)
        self.live = folder / "live"

    def upsert(self) -> dict[str, int]:
        return counts(summary_of("upsert", self.corpus, "--recipe", self.recipe, "--live", self.live))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("expand"), "expand")


@pytest.fixture
def settings(place: Place, tmp_path: Path) -> Settings:
    """Those of a service that encodes, with a journal of its own."""
    keys, live = keys_file(tmp_path, *ENTRIES), tmp_path / "live"
    return Settings(live=live, recipe=place.recipe, api_keys_file=keys, deadline_ms=60_000, warm_up_queries=1)


def test_a_service_with_a_model_encodes_fields_alone(place: Place, settings: Settings) -> None:
    """One document or many, to what `upsert` gives."""
    settings, plain = settings.model_copy(update={"live": place.live}), PLAIN
    known = place.lines()[7]
    with SearchEngine.open(place.bundle, settings) as engine, live(create_app(engine)) as url:
        client = SearchClient(url, api_key=KEY, timeout_s=60)
        with client:
            assert client.info().document_model is not None
            written = client.put_document("new", plain)
            assert (written.result, written.encoded) == ("created", True)
            assert not client.put_document("new", {**client.document("new").fields}).encoded
            assert client.search("zebra crosses the road", k=1).hits[0].id == "new"
            many = [{"id": f"many-{number}", "fields": {"text": f"{NEW['text']} {number}"}} for number in range(40)]
            known_fields = {name: value for name, value in known.items() if name != "_id"}
            lines = [
                *many,
                {"id": "twin", "fields": plain},
                {"id": "twin", "fields": {**plain, "topic": "t1"}},  # the same text
                {"id": "twin", "delete": True},
                {"id": "twin", "fields": plain},
                {"id": known["_id"], "fields": {**known_fields, "topic": "other"}},
                {"id": "own", "fields": plain, "vector": [1.0] * 32, "impacts": {"300": 5}},
                {"id": "part", "fields": plain, "vector": [1.0] * 32},
                {"id": "new", "fields": {"text": "Stale"}, "version": "1.0"},
                {"id": "lengthy", "fields": {"text": "A long text about music. " * 500}},
            ]
            answer = ask(
                "POST",
                f"{url}/documents",
                headers={"content-type": "application/x-ndjson"},
                content="\n".join(json.dumps(line) for line in lines),
            )
            assert answer.status_code == 200, answer.text
            told = answer.json()["results"]
            assert [one["result"] for one in told[40:]] == [
                *("created", "changed", "deleted", "created", "changed", "created", "refused", "refused", "created")
            ]
            encoded = [one["id"] for one in told if one.get("encoded")]
            assert encoded == [*(one["id"] for one in many), "twin", "twin", "lengthy"]
            assert [one["id"] for one in told if one.get("cut")] == ["lengthy"]
            assert engine.terms("twin").terms == engine.terms("new").terms
            assert client.document("new").fields == plain
            found = {hit.id for hit in client.search("zebra crosses the road", k=100, candidates=1000).hits}
            assert {f"many-{number}" for number in range(40)} <= found
            wrong = ask("POST", f"{url}/documents", json=[{"id": "p3", "fields": plain}])
            assert (wrong.status_code, wrong.json()["kind"]) == (415, "invalid_body")
    corpus = [NEW, *place.lines(), *({"_id": one["id"], **one["fields"]} for one in many)]  # type: ignore[dict-item]
    corpus[20]["text"] += " This is new."
    place.write([*corpus, {**corpus[5], "_id": "same"}])
    assert place.upsert() == {"unchanged": COUNT + 39, "fields": 1, "encoded": 2, "created": 1}
    with SearchEngine.open(place.bundle, settings) as engine:
        same, model = engine.terms("same"), engine.terms(corpus[5]["_id"])
    common = {one.term: one.impact for one in model.terms}
    assert all(abs(common.get(one.term, one.impact) - one.impact) <= 1 for one in same.terms)
    with raises(RecipeError):
        run("delete", place.ids("new\n"))


def test_documents_wait_for_the_model_within_bounds_and_searches_do_not(
    place: Place, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "encode_timeout_s", 0.5)
    own = settings.model_copy(update={"deadline_ms": 3_000, "search_threads": 2})
    with SearchEngine.open(place.bundle, own) as engine, live(create_app(engine)) as url:
        engine.warm_up()
        ended = threading.Event()
        call = engine.submit(ended.wait, ENCODE_DOCUMENT)  # another document
        late = list[AnswerError]()

        def put(number: int) -> None:
            with SearchClient(url, api_key=KEY, timeout_s=60, attempts=1) as one, pytest.raises(AnswerError) as error:
                one.put_document(f"late-{number}", PLAIN)
            late.append(error.value)

        threads = ThreadPoolExecutor(4)
        try:
            putting = threads.map(put, range(4))
            with SearchClient(url, api_key=KEY, timeout_s=60, attempts=1) as searching:
                assert searching.search("music", k=3).hits
                list(putting)
                assert searching.ready()
                assert len(late) == 4
                assert {one.kind for one in late} <= {"deadline_exceeded", "not_ready"}
                with raises(AnswerError):
                    searching.put_document("refused", PLAIN)
        finally:
            ended.set()
            call.future.result()
            threads.shutdown()
        with SearchClient(url, api_key=KEY, timeout_s=60) as again:
            assert again.put_document("in time", PLAIN).encoded
            again.delete_document("in time", wait=True)
            for number in range(4):
                with raises(AnswerError):
                    again.document(f"late-{number}")


def test_a_service_without_a_model_says_what_is_missing(place: Place, settings: Settings) -> None:
    own = settings.model_copy(update={"recipe": None})
    with opened(place.bundle, own) as client:
        assert client.info().document_model is None
        with pytest.raises(AnswerError) as error:
            client.put_document("new", PLAIN)
    assert (error.value.status, error.value.kind) == (422, "invalid_request")
    for part in ("vector: is missing", "the document is new", "`lightretriever upsert`", "the setting `recipe`"):
        assert part in str(error.value)


def test_a_recipe_that_can_not_be_used_ends_the_start(place: Place, settings: Settings) -> None:
    with raises(SettingsError, naming="recipe.yaml"):
        load_settings(arguments={"recipe": place.recipe})
    backbone = place.recipe.with_name("work") / "backbone.json"
    begun = backbone.read_text()
    backbone.write_text(begun.replace('"fingerprint": "', '"fingerprint": "other '))
    try:
        with raises(ResumeError, naming="backbone.json"):
            SearchEngine.open(place.bundle, settings)
    finally:
        backbone.write_text(begun)


def test_commands_follow_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first lines of the guide say: from the folder of the build, with a recipe that names no places."""
    place = Place(tmp_path, "expand")
    monkeypatch.chdir(tmp_path)
    recipe = yaml.safe_load(place.recipe.read_text())
    rest = {key: value for key, value in recipe.items() if key not in ("name", "work", "output")}
    place.recipe.write_text(yaml.safe_dump({**rest, "corpus": {"path": "corpus.jsonl"}}))
    run("build", "recipe.yaml")
    bundle = tmp_path / "runs" / "corpus" / "bundle"
    assert bundle.is_dir()
    fresh = [{"_id": "n1", "title": "Whisk", "text": "A tool to beat eggs."}, {"_id": "n2 ", "text": "A colander."}]
    Path("new.jsonl").write_text("".join(json.dumps(line) + "\n" for line in fresh))
    summary = summary_of("upsert", "new.jsonl", "--recipe", "recipe.yaml", "--live", "live")
    assert counts(summary) == {"unchanged": 0, "fields": 0, "encoded": 2, "created": 2}
    bad = [*fresh, {**fresh[0], "_id": "n3", "fold": 1}]
    Path("bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bad))
    with raises(CorpusError, naming='line 3: document "n3": fields.fold: no document of the bundle has such a field'):
        run("upsert", "bad.jsonl", "--recipe", "recipe.yaml", "--live", "live")
    skipping = summary_of("upsert", "bad.jsonl", "--recipe", "recipe.yaml", "--live", "live", "--skip-bad")
    assert (skipping["unchanged"], skipping["skipped"]) == (2, 1)
    Path("gone.txt").write_text("n1\nn2\n")
    told = run("delete", "gone.txt", "--live", "live", "--bundle", "recipe.yaml")
    assert "1 documents deleted, 1 were not there, such as 'n2'" in told
    Path("gone.txt").write_text("n2 \n")  # an id may end in a blank
    assert summary_of("delete", "gone.txt", "--live", "live", "--bundle", "recipe.yaml")["deleted"] == 1
    run("compact", "recipe.yaml", "--live", "live", "--output", "new")
    ids = [line["_id"] for line in place.lines()]
    Path("gone.txt").write_text("\n".join(ids))
    run("delete", "gone.txt", "--live", "live", "--bundle", "recipe.yaml")
    with raises(JournalError, naming="all documents are deleted"):
        run("compact", "recipe.yaml", "--live", "live", "--output", "none")
