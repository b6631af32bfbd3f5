"""What the vocabulary lacks is no evidence: added to a query, it changes nothing that the rest of it finds."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import Mode, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from tests.service.conftest import SETTINGS
from tests.support.tiny import TinyDocument, make_tiny_bundle

UNKNOWN = ("🎉", "漢字", "ภาษาไทย", "ተማሪ", "x" * 150)
DOCUMENTS = [
    TinyDocument("party", "brain party", "a party of brains", 2001),
    TinyDocument("emoji", "🎉 🎉", "漢字 ภาษาไทย ተማሪ 🎉", 2002),
    TinyDocument("long", "long", f"{'y' * 150} 漢 {'x' * 150}", 2003),
    TinyDocument("quiet", "quiet", "nothing of all that", 2004),
]


def known_words() -> Tokenizer:
    """A tokenizer that knows words of letters without accents alone."""
    words = sorted({word for document in DOCUMENTS for word in document.full_text.split() if word.isascii()})
    vocabulary = ["[UNK]", *(word for word in words if len(word) < 100)]
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path = tmp_path_factory.mktemp("bundle") / "bundle"
    bundle = make_tiny_bundle(path, documents=DOCUMENTS, own_tokenizer=known_words())
    with SearchEngine.open(bundle, SETTINGS) as engine:
        yield engine


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
def test_it_changes_no_hit(engine: SearchEngine, mode: Mode) -> None:
    expected = engine.search(SearchRequest(query="party", mode=mode)).hits
    for count in (1, 2, 5):
        for unknown in combinations(UNKNOWN, count):
            query = " ".join(["party", *unknown])
            assert engine.search(SearchRequest(query=query, mode=mode)).hits == expected, query


def test_a_query_of_nothing_else_has_no_tokens(engine: SearchEngine) -> None:
    with TestClient(create_app(engine)) as client:
        for text in (*UNKNOWN, " ".join(UNKNOWN)):
            for path, body in (
                ("/search", {"query": text}),
                ("/encode", {"text": text}),
                ("/v1/embeddings", {"model": "default", "input": ["party", text]}),
            ):
                answer = client.post(path, json=body)
                assert (answer.status_code, answer.json()["kind"]) == (422, "unsearchable_query")
                assert "no word and no known token" in answer.json()["detail"]
        told = client.post("/encode", json={"text": "party 🎉 party"}).json()["tokens"]
        assert [(token["token"], token["count"]) for token in told] == [("party", 2)]


@pytest.mark.parametrize("mode", ["hybrid", "dense"])
def test_snippets_mark_words_that_only_the_sparse_leg_knows(tmp_path: Path, mode: Mode) -> None:
    query = f"quiet 漢 {'x' * 150} ภาษา"
    asked = {"query": query, "mode": mode, "snippets": {"fields": ["text"]}}
    found = {}
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=DOCUMENTS, own_tokenizer=known_words(), vocabulary="words")
    with SearchEngine.open(bundle, SETTINGS) as engine:
        for hit in engine.search(SearchRequest.model_validate(asked)).hits:
            assert hit.snippets is not None
            snippet = hit.snippets["text"]
            found[hit.id] = [snippet.text[start:end] for start, end in snippet.marks]
    assert found == {"party": [], "emoji": ["漢", "ภาษา"], "long": ["漢", "x" * 150], "quiet": []}
