"""`lightretriever upsert` and `delete` beside a bundle, and a service that encodes, with the tiny model of a recipe."""

from pathlib import Path

import pytest

from lightretriever.artifacts.errors import RecipeError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.commands import run, summary_of
from tests.support.keys import keys_file
from tests.support.upserted import COUNT, NEW, Upserted, counts
from tests.support.wordings import raises
from tests.support.written import ENTRIES, opened


class Place(Upserted):
    """With a folder for the journal."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind)
        self.live = folder / "live"

    def upsert(self) -> dict[str, int]:
        return counts(summary_of("upsert", self.corpus, "--recipe", self.recipe, "--live", self.live))

    def delete(self, ids: str) -> tuple[int, int]:
        done = summary_of("delete", self.ids(ids), "--live", self.live, "--bundle", self.bundle.path)
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
    with SearchEngine.open(place.bundle, settings) as engine:
        assert engine.document("twin").fields == {name: lines[5][name] for name in lines[5] if name != "_id"}
        twin, model = engine.terms("twin"), engine.terms(lines[5]["_id"])
        common = {one.term: one.impact for one in model.terms}
        assert all(abs(common.get(one.term, one.impact) - one.impact) <= 1 for one in twin.terms)
        hits = {hit.id for hit in engine.search(SearchRequest(query="network music", k=100)).hits}
        assert lines[0]["_id"] not in hits
    with raises(RecipeError):
        run("delete", place.ids("new\n"))


@pytest.mark.slow
def test_a_service_with_a_model_encodes_fields_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, "expand")
    keys = keys_file(tmp_path, *ENTRIES)
    settings = Settings(live=place.live, recipe=place.recipe, api_keys_file=keys, deadline_ms=60_000, warm_up_queries=1)
    with opened(place.bundle, settings) as client:
        written = client.put_document("new", {name: NEW[name] for name in ("title", "text")})
        assert (written.created, written.encoded) == (True, True)
        assert not client.put_document("new", {**client.document("new").fields}).encoded
        assert client.search("zebra crosses the road", k=1).hits[0].id == "new"
    place.write([NEW, *place.lines()])
    assert place.upsert()["unchanged"] == COUNT + 1
