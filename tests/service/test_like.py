"""Documents like another: by every door, and why they are there. What is like what: tests/backends."""

import pytest
from fastapi.testclient import TestClient

LIKE = "doc-50"


def test_every_door_finds_the_same_documents(words_client: TestClient) -> None:
    asked = {"like": LIKE, "k": 5, "mode": "dense"}
    answer = words_client.post("/search", json=asked).json()
    ids = [hit["id"] for hit in answer["hits"]]
    assert len(ids) == 5
    assert LIKE not in ids
    (batched,) = words_client.post("/search/batch", json={"searches": [asked]}).json()["results"]
    by_address = words_client.get("/search", params={"like": LIKE, "k": 5, "mode": "dense"}).json()
    assert answer["hits"] == batched["hits"] == by_address["hits"]
    assert answer["unjudged"] == "Documents like another are not judged."


def test_terms_in_common_say_why(words_client: TestClient) -> None:
    own = {term["term"]: term["impact"] for term in words_client.get(f"/terms/{LIKE}").json()["terms"]}
    asked = {"like": LIKE, "k": 3, "explain": True, "snippets": {"fields": ["text"]}}
    for hit in words_client.post("/search", json=asked).json()["hits"]:
        explanation = hit["explanation"]
        assert explanation["note"] == f"The query is the document {LIKE}: its vector and its heaviest terms."
        assert all(word["dense"] is None and word["count"] == 0 for word in explanation["words"])
        assert sum(word["sparse"] for word in explanation["words"]) == pytest.approx(hit["sparse"]["score"])
        terms = [term for word in explanation["words"] for term in word["terms"]]
        assert len(terms) == min(16, len(own))
        for term in terms:
            assert term["weight"] == pytest.approx(own[term["term"]] / max(own.values()))
        assert bool(hit["snippets"]["text"]["marks"]) == any(term["impact"] for term in terms if not term["added"])
