"""How well documents match: by the thresholds of the bundle, in hits, answers and `/info`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import LegName
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import CandidateTable
from lightretriever.service.search.matching import best_match, thresholds_of

from tests.service.conftest import SETTINGS
from tests.support.meaning import make_meaningful_bundle

NONSENSE = "bababa cefono tesagu"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_meaningful_bundle(tmp_path_factory.mktemp("matched") / "bundle")


@pytest.fixture(scope="module")
def meaning(bundle: Bundle) -> Iterator[TestClient]:
    with SearchEngine.open(bundle, SETTINGS) as engine:
        engine.warm_up()
        with TestClient(create_app(engine)) as client:
            yield client


def ask(client: TestClient, query: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/search", json={"query": query, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_good_query_matches_and_nonsense_does_not(meaning: TestClient) -> None:
    good = ask(meaning, "mend the punctured tyre of a bicycle")
    assert (good["matched"], good["hits"][0]["matched"]) == ("strong", "strong")
    assert good["hits"][-1]["matched"] == "none"
    bad = ask(meaning, NONSENSE)
    assert bad["matched"] == "none"
    assert {hit["matched"] for hit in bad["hits"]} == {"none"}
    assert bad["hits"][0]["score"] == 1.0  # as good as the best, for lack of better ones


def test_the_thresholds_are_those_of_the_bundle(meaning: TestClient, bundle: Bundle) -> None:
    match = bundle.manifest.tasks["search"].match
    assert match is not None
    assert meaning.get("/info").json()["matched"] == {"search": match.model_dump()}
    for query in ("bicycle", "honey in summer", "mountains and ripe cheeses", NONSENSE):
        answer = ask(meaning, query, candidates=10)
        for hit in answer["hits"]:
            score = hit["dense"]["score"]
            band = "strong" if score >= match.strong else "weak" if score >= match.weak else "none"
            assert hit["matched"] == band
        best = max(answer["hits"], key=lambda hit: hit["dense"]["score"])
        assert answer["matched"] == best["matched"]


@pytest.mark.parametrize(
    ("query", "share", "impact", "level"),
    [
        ("bababa", 0.5, 1.5, "weak"),
        ("bababa", 0.5, 0.0, "none"),  # the tokenizer knows the word, and no document has it
        ("the bababa", 1.1, 0.0, "strong"),
        ("xkjdh", 1.1, 0.0, "none"),  # nor does the tokenizer
        ("the xkjdh", 1.1, 0.0, "none"),
        ("xkjdh", 1.1, 1.5, "strong"),
    ],
)
def test_without_a_word_of_the_query_in_any_document_less_matches(
    bundle: Bundle, query: str, share: float, impact: float, level: str
) -> None:
    match = bundle.manifest.tasks["search"].match
    assert match is not None
    scores = np.array([[match.weak + share * (match.strong - match.weak), 0.0], [0.0, impact]])
    table = CandidateTable(np.array([4, 7]), scores, np.zeros((2, 2), np.int64))
    legs: list[LegName] = ["dense", "sparse"]
    tokenizer = bundle.tokenizer()
    encoder = QueryEncoder(tokenizer, {"search": bundle.table("search")}, bundle.vocabulary(tokenizer))
    asked = EncodedQuery.of_model([], np.empty(0, np.float32), None)
    limits = thresholds_of(match, query, asked, table, legs, encoder)
    assert best_match(table, legs, limits) == {"matched": level}
    # Where terms are tokens, or no words were searched, the thresholds stay.
    of_tokens = QueryEncoder(tokenizer, encoder.tables)
    assert thresholds_of(match, query, asked, table, legs, of_tokens) == match
    assert thresholds_of(match, query, asked, table, ["dense"], encoder) == match


def test_every_page_of_a_search_says_the_same(meaning: TestClient) -> None:
    pages = [
        ask(meaning, "harvest honey in summer on warm days", k=1, offset=offset, candidates=10) for offset in range(5)
    ]
    assert {page["matched"] for page in pages} == {"strong"}
    assert len({page["hits"][0]["matched"] for page in pages}) > 1


@pytest.mark.parametrize("fields", [{"mode": "sparse"}, {"terms": [{"text": "oven", "weight": 2.0}]}])
def test_without_a_comparable_dense_score_nothing_is_said(meaning: TestClient, fields: dict[str, Any]) -> None:
    answer = ask(meaning, "bicycle", **fields)
    assert answer["hits"]
    assert "matched" not in answer
    assert not any("matched" in hit for hit in answer["hits"])


def test_a_bundle_without_thresholds_says_nothing(client: TestClient) -> None:
    answer = ask(client, "music")
    assert "matched" not in answer
    assert not any("matched" in hit for hit in answer["hits"])
    assert "matched" not in client.get("/info").json()


def test_explanations_tell_how_many_words_a_document_has(meaning: TestClient) -> None:
    answer = ask(meaning, "How do bees make honey and cheese?", explain=True)
    shares = {hit["fields"]["title"]: hit["explanation"]["coverage"] for hit in answer["hits"]}
    assert shares["Keeping bees"] == 0.3333  # two of how, do, bee, make, honey, cheese
    assert shares["Sailing dinghies"] == 0.0
    assert "coverage" not in ask(meaning, "the and", explain=True)["hits"][0]["explanation"]


def test_coverage_counts_tokens_where_the_terms_are_tokens(tmp_path: Path) -> None:
    bundle = make_meaningful_bundle(tmp_path / "bare", vocabulary="tokens")
    with SearchEngine.open(bundle, SETTINGS) as engine, TestClient(create_app(engine)) as client:
        answer = ask(client, "bicycle bababa", explain=True)
        assert answer["hits"][0]["explanation"]["coverage"] == 0.5
        assert answer["matched"] in ("weak", "strong")
