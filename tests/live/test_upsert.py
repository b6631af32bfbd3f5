"""`lightretriever upsert` and `delete` beside a bundle, and a service that encodes, with the tiny model of a recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.service.cli import app
from lightretriever.service.client import SearchClient
from lightretriever.service.http.api_keys import new_key
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from typer.testing import CliRunner

from tests.pipeline.test_growing import COUNT, NEW, write_recipe
from tests.service.live import live

KEY, ENTRY = new_key("both", ["search", "admin"])


class Place:
    """A recipe that was built, its corpus, and a folder for the journal."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.recipe, self.corpus = write_recipe(folder, kind), folder / "corpus.jsonl"
        self.live, self.path = folder / "live", folder / "bundle"
        lines = self.lines()
        for number, line in enumerate(lines):
            line["topic"] = f"t{number % 3}"
        self.write(lines)
        self.run("build", str(self.recipe))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.corpus.read_text("utf-8").splitlines()]

    def write(self, lines: list[dict[str, Any]]) -> None:
        self.corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(self, *command: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*command, "--json"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        return found

    def upsert(self) -> dict[str, int]:
        done = self.run("upsert", str(self.corpus), "--recipe", str(self.recipe), "--live", str(self.live))
        return {name: done[name] for name in ("unchanged", "fields", "encoded", "created")}

    def delete(self, ids: str) -> tuple[int, int]:
        file = self.corpus.with_name("ids.txt")
        file.write_text(ids)
        done = self.run("delete", str(file), "--live", str(self.live), "--bundle", str(self.path))
        return done["deleted"], done["missing"]


def test_only_what_changed_is_encoded_and_written(tmp_path: Path) -> None:
    place = Place(tmp_path, "expand")
    assert place.upsert() == {"unchanged": COUNT, "fields": 0, "encoded": 0, "created": 0}
    lines = place.lines()
    lines[3]["topic"], lines[20]["text"] = "other", lines[20]["text"] + " This is new."
    place.write([NEW, *lines, {**lines[5], "_id": "twin"}])
    assert place.upsert() == {"unchanged": COUNT - 2, "fields": 1, "encoded": 3, "created": 2}
    assert place.upsert() == {"unchanged": COUNT + 2, "fields": 0, "encoded": 0, "created": 0}
    assert place.delete(f"new\n{lines[0]['_id']}\nnobody\n") == (2, 1)
    settings = Settings(live=place.live, deadline_ms=60_000, warm_up_queries=1)
    with SearchEngine.open(Bundle.open(place.path), settings) as engine:
        assert engine.document("twin").fields == {name: lines[5][name] for name in lines[5] if name != "_id"}
        twin, model = engine.terms("twin"), engine.terms(lines[5]["_id"])
        common = {one.term: one.impact for one in model.terms}
        assert all(abs(common.get(one.term, one.impact) - one.impact) <= 1 for one in twin.terms)
        hits = {hit.id for hit in engine.search(SearchRequest(query="network music", k=100)).hits}
        assert lines[0]["_id"] not in hits
    with pytest.raises(RecipeError, match="Give --live and a bundle, or --to and --index"):
        place.run("delete", str(place.corpus.with_name("ids.txt")))


@pytest.mark.slow
def test_a_service_with_a_model_encodes_fields_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, "expand")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([ENTRY.model_dump(exclude_none=True)]))
    settings = Settings(live=place.live, recipe=place.recipe, api_keys_file=keys, deadline_ms=60_000, warm_up_queries=1)
    with (
        SearchEngine.open(Bundle.open(place.path), settings) as engine,
        live(create_app(engine)) as url,
        SearchClient(url, api_key=KEY, timeout_s=60) as client,
    ):
        written = client.put_document("new", {name: NEW[name] for name in ("title", "text")})
        assert (written.created, written.encoded) == (True, True)
        assert not client.put_document("new", {**client.document("new").fields}).encoded
        assert client.search("zebra crosses the road", k=1).hits[0].id == "new"
    place.write([NEW, *place.lines()])
    assert place.upsert()["unchanged"] == COUNT + 1
