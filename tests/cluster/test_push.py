"""`lightretriever push` to a real cluster: whole, checked and switched at once, or nothing changed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import httpx2
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cluster.client import Cluster, indexes_of, only_index, read_meta
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import check_scores, push
from lightretriever.artifacts.errors import BundleError, ClusterError
from lightretriever.artifacts.live.documents import Change, delete
from lightretriever.artifacts.reports import ProgressBar
from lightretriever.service.backends.opensearch import open_cluster
from lightretriever.service.errors import SettingsError
from lightretriever.service.settings import load_settings
from tests.lucene.support import search
from tests.support.cluster import remove_indexes, served_by
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.wordings import raises

ROOT = Path(__file__).parents[2]
NAME = f"push-{os.getpid()}"


@pytest.fixture(autouse=True)
def cleared(opensearch: str) -> Iterator[None]:
    yield
    remove_indexes(opensearch, NAME)


def pushed(bundle: Bundle, cluster: Cluster, **options: object) -> dict[str, Any]:
    given = {"replicas": 0, **options}
    return push(bundle, cluster, NAME, **given).facts  # type: ignore[arg-type]


settings = partial(served_by, index=NAME)


def command(bundle: Path, url: str, *options: str) -> list[str]:
    program = [sys.executable, "-m", "lightretriever.service.cli", "push", str(bundle)]
    return [*program, "--to", url, "--index", NAME, "--replicas", "0", *options]


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ClusterError) as error:
        call()
    assert error.value.remedy
    return str(error.value)


def test_a_push_gives_the_alias_to_a_whole_index(tiny_bundle: Bundle, cluster: Cluster, tmp_path: Path) -> None:
    part = tmp_path / "query"
    words = command(tiny_bundle.path, cluster.name, "--query-bundle", str(part), "--json")
    summary = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert (summary["documents"], summary["found"], summary["before"]) == (120, 0, [])
    assert only_index(cluster, NAME) == summary["index"]
    meta = read_meta(cluster, summary["index"])
    assert (meta.version, meta.documents, meta.vocabulary) == (tiny_bundle.manifest.digest, 120, "tokens")
    assert verify_bundle(part, indexes=False) == []
    assert not (part / "lucene").exists()
    assert Bundle.open(part, indexes=False).manifest == tiny_bundle.manifest
    with raises(BundleError):
        Bundle.open(part)
    again = pushed(tiny_bundle, cluster)
    assert tuple(again[name] for name in ("index", "found", "before")) == (summary["index"], 120, [])


@pytest.mark.slow
def test_a_killed_push_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "large", documents=tiny_documents(4000))
    process = subprocess.Popen(command(bundle.path, cluster.name), stderr=subprocess.DEVNULL)
    client = cluster.client
    while process.poll() is None:
        if client.indices.exists(index=f"{NAME}-*", allow_no_indices=False):
            client.indices.refresh(index=f"{NAME}-*")
            if client.count(index=f"{NAME}-*")["count"] > 1500:
                process.send_signal(signal.SIGKILL)
                break
        sleep(0.05)
    assert process.wait() == -signal.SIGKILL
    assert indexes_of(cluster, NAME) == []
    run = subprocess.run(command(bundle.path, cluster.name, "--json"), capture_output=True, check=True)
    summary = json.loads(run.stdout)
    assert 1024 <= summary["found"] < 4000
    assert client.count(index=NAME)["count"] == 4000


def test_another_index_takes_the_alias_in_one_step(tiny_bundle: Bundle, cluster: Cluster) -> None:
    one = pushed(tiny_bundle, cluster)
    two = pushed(tiny_bundle, cluster, shards=2)
    assert (two["before"], two["removed"], only_index(cluster, NAME)) == ([one["index"]], False, two["index"])
    assert cluster.client.indices.exists(index=one["index"])
    back = pushed(tiny_bundle, cluster, delete_old=True)
    assert tuple(back[name] for name in ("index", "found", "before")) == (one["index"], 120, [two["index"]])
    assert not cluster.client.indices.exists(index=two["index"])


def test_changes_made_during_a_push_are_not_removed(
    tiny_bundle: Bundle, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in an index that was removed, and pushed again under the same name, since its writer began."""
    index = pushed(tiny_bundle, cluster)["index"]
    live = LiveIndex(cluster, NAME, index, read_meta(cluster, index))
    assert live.write([Change("music")], perf_counter() + 1e6) != [None]
    cluster.client.indices.delete(index=index)
    assert pushed(tiny_bundle, cluster)["index"] == index
    assert not read_meta(cluster, index).live
    ids = iter(["music", "editor"])

    def advance(*_: object) -> None:
        if document_id := next(ids, None):
            assert live.write([Change(document_id)], perf_counter() + 1e6) != [None]

    monkeypatch.setattr(ProgressBar, "advance", advance)
    two = pushed(tiny_bundle, cluster, shards=2, delete_old=True)
    assert tuple(two[name] for name in ("before", "removed", "changed")) == ([index], False, [index])
    assert cluster.client.indices.exists(index=index)
    assert f"{NAME} became {two['index']}" in refused(lambda: live.write([Change("repeat")], perf_counter() + 1e6))
    assert f"{NAME} became {two['index']}" in refused(lambda: delete(live, ["terminal"], int))


def test_large_impacts_come_back_exactly(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.tiny.QUANTIZATION", 17_000)
    bundle = make_tiny_bundle(tmp_path / "large-impacts")
    pushed(bundle, cluster)
    backends = open_cluster(bundle, settings(cluster))
    with bundle.sparse() as index:
        assert max(max(row.values()) for row in index.rows(0, 120)) > 40_000
        for ordinal in (0, 10, 60):
            expected, found = index.terms(ordinal), backends.documents.terms(ordinal)
            assert [list(part) for part in found] == [list(part) for part in expected]
    backends.close()


def test_documents_with_more_terms_than_a_query_may_have(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.tiny.QUANTIZATION", 2_000)  # so an impact needs two clauses
    words = [f"w{number}" for number in range(1_500)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    documents = [TinyDocument(f"long-{first}", "", " ".join(words[first:]), 2000) for first in (0, 100, 400)]
    bundle = make_tiny_bundle(tmp_path / "long", documents=documents, own_tokenizer=tokenizer)
    assert pushed(bundle, cluster)["documents"] == 3


def test_a_changed_document_is_found(tiny_bundle: Bundle, cluster: Cluster) -> None:
    index = pushed(tiny_bundle, cluster)["index"]
    dense, meta = tiny_bundle.dense(), read_meta(cluster, index)
    with tiny_bundle.sparse() as sparse:
        check_scores(cluster, index, meta, dense, sparse)
        terms, impacts = sparse.terms(0)
        body = {"doc": {"impacts": {terms[0]: int(impacts[0]) + 1}}}
        cluster.client.update(index=index, id="music", body=body, refresh=True)
        found = refused(lambda: check_scores(cluster, index, meta, dense, sparse))
    assert "In the sparse leg, document 0 scores" in found


def test_what_has_the_name_already_is_left_alone(tiny_bundle: Bundle, cluster: Cluster) -> None:
    client = cluster.client
    client.indices.create(index=NAME)
    assert "not an alias" in refused(lambda: pushed(tiny_bundle, cluster))
    client.indices.delete(index=NAME)
    client.indices.create(index=f"{NAME}-foreign", body={"aliases": {NAME: {}}})
    assert "has no _meta" in refused(lambda: pushed(tiny_bundle, cluster))
    assert "has no _meta" in refused(lambda: open_cluster(tiny_bundle, settings(cluster)))
    assert list(client.indices.get(index=f"{NAME}*")) == [f"{NAME}-foreign"]


@pytest.mark.parametrize("name", ["", "Upper", "_below", "a b", "a" * 201, "ä"])
def test_a_name_that_no_index_can_have(tiny_bundle: Bundle, cluster: Cluster, name: str) -> None:
    with raises(ClusterError, naming="200"):
        push(tiny_bundle, cluster, name)


def test_a_vector_that_is_too_long(tiny_bundle: Bundle, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.cluster.push.MAX_CLUSTER_DIMENSION", 15)
    assert "vectors have 16 values; a cluster takes 15" in refused(lambda: pushed(tiny_bundle, cluster))
    assert not cluster.client.indices.exists(index=f"{NAME}-*", allow_no_indices=False)


def test_a_service_wants_the_index_of_its_bundle(tiny_bundle: Bundle, cluster: Cluster, tmp_path: Path) -> None:
    assert "is no index on" in refused(lambda: open_cluster(tiny_bundle, settings(cluster)))
    pushed(tiny_bundle, cluster)
    other = make_tiny_bundle(tmp_path / "other", seed=8)
    with pytest.raises(BundleError) as error:
        open_cluster(other, settings(cluster))
    assert tiny_bundle.manifest.digest[:12] in str(error.value)
    assert other.manifest.digest[:12] in str(error.value)
    with raises(SettingsError, naming="max_candidates"):
        open_cluster(tiny_bundle, settings(cluster, max_candidates=20_000))
    with raises(SettingsError, naming="opensearch_url"):
        load_settings(None, {"opensearch_url": cluster.name})


def test_the_curl_of_the_page_gives_the_scores_of_the_bundle(cluster: Cluster, tmp_path: Path) -> None:
    """docs/howto/inverted-index-alone.md, word for word but for the address and the index."""
    texts = ["make tea with milk", "make make make coffee", "tea, tea and biscuits", "nothing of the kind"]
    documents = [TinyDocument(f"d{place}", "", text, 2000) for place, text in enumerate(texts)]
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=documents, vocabulary="words", dense=False)
    pushed(bundle, cluster)
    page = (ROOT / "docs" / "howto" / "inverted-index-alone.md").read_text(encoding="utf-8")
    (curl,) = re.findall(r"^curl -s .*?^}'$", page, flags=re.MULTILINE | re.DOTALL)
    *_, header, _, body = shlex.split(curl)
    name, value = header.split(": ")
    answer = httpx2.post(f"{cluster.name.rstrip('/')}/{NAME}/_search", content=body, headers={name: value}, timeout=60)
    found = {json.loads(hit["_source"]["raw"])["_id"]: hit["_score"] for hit in answer.json()["hits"]["hits"]}
    with bundle.sparse() as index:
        ordinals, scores = search(index, ["make", "tea"], np.ones(2, np.float32), 10)
        ids = [json.loads(document)["_id"] for document in index.documents(ordinals)]
    assert found == dict(zip(ids, scores.tolist(), strict=True))
    assert len(found) == 3
