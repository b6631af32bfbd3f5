"""`lightretriever upsert` and `delete` on a real cluster, with the recipe and the tiny model of the pushed bundle."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from lightretriever.artifacts.cluster.client import Cluster, only_index, read_meta
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.errors import BundleError, ClusterError, CorpusError
from tests.live.test_upsert import Upserted, counts
from tests.pipeline.test_growing import COUNT, NEW
from tests.support.cluster import remove_indexes
from tests.support.commands import only, run, summary_of
from tests.support.wordings import raises

NAME = f"upsert-{os.getpid()}"


class Place(Upserted):
    """With the bundle on the cluster."""

    def __init__(self, folder: Path, cluster: Cluster, kind: str) -> None:
        super().__init__(folder, kind)
        self.cluster = cluster
        push(self.bundle, cluster, NAME, replicas=0)
        index = only_index(cluster, NAME)
        self.live = LiveIndex(cluster, NAME, index, read_meta(cluster, index))

    def upsert(self, *options: str) -> dict[str, Any]:
        where = ("--to", self.cluster.name, "--index", NAME)
        return summary_of("upsert", self.corpus, "--recipe", self.recipe, *where, *options)

    def delete(self, ids: str) -> dict[str, Any]:
        return summary_of("delete", self.ids(ids), "--to", self.cluster.name, "--index", NAME)

    def source(self, document_id: str) -> dict[str, Any]:
        stored = self.live.get(document_id, perf_counter() + 60)
        assert stored is not None
        return dict(stored.source)


@pytest.fixture(autouse=True)
def cleared(cluster: Cluster) -> Iterator[None]:
    yield
    remove_indexes(cluster.name, NAME)


@pytest.mark.parametrize("kind", ["learned", "expand"])
def test_only_what_changed_is_encoded_and_written(kind: str, tmp_path: Path, cluster: Cluster) -> None:
    place = Place(tmp_path, cluster, kind)
    assert counts(place.upsert()) == {"unchanged": COUNT, "fields": 0, "encoded": 0, "created": 0}
    lines = place.lines()
    lines[3]["topic"], lines[20]["text"] = "other", lines[20]["text"] + " This is new."
    place.write([NEW, *lines, {**lines[5], "_id": "twin"}])
    before = [place.source(lines[number]["_id"]) for number in (3, 20)]
    done = place.upsert()
    assert counts(done) == {"unchanged": COUNT - 2, "fields": 1, "encoded": 3, "created": 2}
    assert done["documents"] == COUNT + 2
    fields, text = (place.source(lines[number]["_id"]) for number in (3, 20))
    assert [fields[name] for name in ("vector", "impacts")] == [before[0][name] for name in ("vector", "impacts")]
    assert fields["raw"] != before[0]["raw"]
    assert text["vector"] != before[1]["vector"]
    assert text["ordinal"] == before[1]["ordinal"]
    twin, model = place.source("twin"), place.source(lines[5]["_id"])
    assert twin["vector"] == pytest.approx(model["vector"], abs=2e-3)  # the bundle's own is quantised, this one is not
    assert twin["impacts"] == pytest.approx(model["impacts"], abs=1)  # at the edge of rounding
    assert counts(place.upsert()) == {"unchanged": COUNT + 2, "fields": 0, "encoded": 0, "created": 0}
    assert place.cluster.client.count(index=NAME)["count"] == COUNT + 2
    done = place.delete(f"new\n{lines[0]['_id']}\nnobody\n")
    assert (done["deleted"], done["missing"]) == (2, 1)
    assert place.cluster.client.count(index=NAME)["count"] == COUNT
    with raises(ClusterError, naming="127.0.0.1"):
        push(place.bundle, place.cluster, NAME, replicas=0)
    with raises(ClusterError, naming="delete-old"):
        push(place.bundle, place.cluster, NAME, shards=2, replicas=0, delete_old=True)
    pushed = push(place.bundle, place.cluster, NAME, shards=2, replicas=0)
    assert pushed.facts["before"] == pushed.facts["changed"] == [place.live.index]


def test_what_can_not_be_written_is_told_before_anything_is(tmp_path: Path, cluster: Cluster) -> None:
    place = Place(tmp_path, cluster, "learned")
    lines = place.lines()
    place.write([*lines, {**NEW, "colour": "red"}])
    with raises(CorpusError):
        place.upsert()
    with raises(CorpusError):
        place.delete("\n")
    assert not read_meta(cluster, place.live.index).live
    place.write(lines)
    run(*only("index"), place.recipe, "--overwrite", "--top-k", "5")
    with raises(BundleError):
        place.upsert()
    cluster.client.indices.put_mapping(index=place.live.index, body={"_meta": {}})
    for call in (place.upsert, partial(place.delete, "new\n")):
        with raises(ClusterError):
            call()
    assert cluster.client.count(index=NAME)["count"] == COUNT
