"""Documents that are nested as deep as the corpus reader takes are answered."""

import json
from dataclasses import dataclass

import pytest

from lightretriever.artifacts.documents.bounds import MAX_NESTING
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.tiny import TinyDocument, make_tiny_bundle


@dataclass(frozen=True)
class Deep(TinyDocument):
    """A document with a list in a list, and so on."""

    depth: int = 0

    @property
    def raw(self) -> bytes:
        fields = {"_id": self.id, "title": self.title, "text": self.text, "year": self.year}
        return json.dumps(fields).encode()[:-1] + b',"deep":' + b"[" * self.depth + b"]" * self.depth + b"}"


def test_a_deep_document_is_answered(tmp_path_factory: pytest.TempPathFactory) -> None:
    depth = MAX_NESTING - 1  # the document is an object around it
    documents = [TinyDocument("flat", "music", "music", 2000), Deep("deep", "music", "music player", 2001, depth)]
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("deep") / "bundle", documents=documents)
    with client_of(bundle, SETTINGS) as client:
        nested = "[" * depth + "]" * depth
        for answer in (
            client.post("/search", json={"query": "music player", "explain": True}),
            client.post("/search/batch", json={"searches": [{"query": "music"}] * 2}),
            client.get("/documents/deep"),
        ):
            assert answer.status_code == 200
            assert f'"deep":{nested}' in answer.text
        assert client.get("/documents/flat").json()["fields"]["text"] == "music"
