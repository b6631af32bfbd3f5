"""Versions on a real cluster whose index was restored from a snapshot: those of before are no longer taken."""

from pathlib import Path
from typing import Any

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.service.client import AnswerError
from tests.support.cluster import connected, own_cluster, served_by
from tests.support.keys import keys_file
from tests.support.written import ENTRIES, NEW, VECTOR, opened

NAME = "restored"


@pytest.mark.slow
def test_versions_never_come_again_after_a_restore(bundle: Bundle, tmp_path: Path) -> None:
    encoded: dict[str, Any] = {"vector": VECTOR, "impacts": {"300": 5}}
    with own_cluster(1) as nodes, connected(nodes.urls[0]) as cluster:
        client, where = cluster.client, {"repository": "here", "snapshot": "one"}
        client.snapshot.create_repository(
            repository="here", body={"type": "fs", "settings": {"location": nodes.keep_snapshots()}}
        )
        index = push(bundle, cluster, NAME, replicas=0, skipped=int, written=int).facts["index"]
        settings = served_by(cluster, NAME, api_keys_file=keys_file(tmp_path, *ENTRIES))
        with opened(bundle, settings) as service:
            first = service.put_document("d", NEW, **encoded)
            client.snapshot.create(**where, body={"indices": index}, params={"wait_for_completion": "true"})
            known = [first.version, service.put_document("d", {**NEW, "year": 2}, **encoded).version]
            for removed in (True, True, False, False, True):  # the same snapshot, beside a service that goes on
                if removed:
                    client.indices.delete(index=index)
                else:
                    client.indices.close(index=index)
                client.snapshot.restore(**where, body={"indices": index}, params={"wait_for_completion": "true"})
                assert service.document("d").fields["year"] == NEW["year"]
                new = service.put_document("d", {**NEW, "year": 2}, **encoded).version  # the same change
                assert new not in known
                for version in known:
                    with pytest.raises(AnswerError) as error:
                        service.put_document("d", {**NEW, "year": 4}, version=version)
                    assert (error.value.status, error.value.kind) == (412, "version_conflict")
                assert service.document("d").version == new
                known.append(new)
