"""What the service, or whoever answers in its place, says when it can't do as asked; and bad requests of our own."""

import httpx2
import pytest

from lightretriever.service.client import AnswerError, ClientError
from lightretriever.service.schemas import BatchRequest, EncodeRequest, Problem, SearchRequest
from tests.client.both import Client, Maker
from tests.client.scripted import Scripted, Step, answer, failure, problem
from tests.support.wordings import raises


def test_a_problem_is_told_whole(client: Client, url: str) -> None:
    sent = {"query": "music", "k": 3000, "candidates": 10**6, "fields": ["nope"]}
    told = Problem.model_validate_json(httpx2.post(f"{url}/search", json=sent, timeout=90).content)
    with pytest.raises(AnswerError) as caught:
        client.search("music", k=3000, candidates=10**6, fields=["nope"])
    error = caught.value
    assert (error.status, error.kind, error.title, error.detail) == (422, told.kind, told.title, told.detail)
    assert error.errors == tuple(told.errors)
    assert len(error.errors) == 2
    assert error.request_id
    assert str(error) == f"{told.detail} (422 invalid_request)"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"k": 0}, "k"),
        ({"k": "5"}, "k"),
        ({"mode": "both"}, "mode"),
        ({"fusion": {"method": "rrf", "rank_constant": -1.0}}, "fusion.rank_constant"),
        ({"fusion": {"method": "borda"}}, "fusion.method"),
        ({"deadline_ms": float("inf")}, "deadline_ms"),
        ({"nope": 1}, "nope"),
    ],
)
def test_a_bad_request_is_not_sent_and_told_as_the_service_would(
    make: Maker, url: str, fields: dict[str, object], field: str
) -> None:
    with Scripted(answer()) as server, make(server.url) as client:
        with pytest.raises(AnswerError) as caught:
            client.search("music", **fields)
        assert server.seen == []
    error = caught.value
    assert (error.status, error.kind) == (422, "invalid_request")
    assert [item.field for item in error.errors] == [field]
    if fields != {"deadline_ms": float("inf")}:  # which is no JSON
        told = httpx2.post(f"{url}/search", json={"query": "music", **fields}, timeout=90).json()
        assert (error.title, error.detail) == (told["title"], told["detail"])
        assert [item.model_dump(exclude_none=True) for item in error.errors] == told["errors"]


@pytest.mark.parametrize("text", ["\ud800", "music \udcff", "\udfff\ud800"])
def test_lone_surrogates_are_named_and_can_be_printed(client: Client, text: str) -> None:
    for refused in (
        lambda: client.search(text),
        lambda: client.search("music", task=text),
        lambda: client.encode(text),
        lambda: client.search_batch(["music", text]),
        lambda: list(client.search_many(["music", text])),
    ):
        with raises(AnswerError) as error:
            refused()
        assert error.value.kind == "invalid_request"
        (item,) = error.value.errors
        assert item.model_dump_json()
        assert str(error.value).encode()
    with raises(ClientError) as wrong:
        client.document(text)
    assert str(wrong.value).encode()
    with pytest.raises(AnswerError) as error:
        client.search("music", **{text: 1})
    assert str(error.value).encode()


def test_a_pair_of_surrogates_that_json_would_join_is_refused_as_well(client: Client) -> None:
    with raises(AnswerError, naming="invalid_request"):
        client.search("\ud83c\udfb5")
    assert client.search("🎵").hits


def test_a_model_and_fields_are_too_much(client: Client) -> None:
    request = SearchRequest(query="music")
    with raises(ClientError):
        client.search(request, k=3)
    with raises(ClientError):
        client.search_batch(BatchRequest(searches=[request]), k=3)
    with raises(ClientError):
        client.encode(EncodeRequest(text="music"), task="fact")
    with raises(ClientError, naming="query"):
        client.search("music", query="play")


def test_a_batch_names_the_bad_search(client: Client) -> None:
    with raises(AnswerError, naming="searches.1.query") as error:
        client.search_batch(["music", ""])
    assert [item.field for item in error.value.errors] == ["searches.1.query"]
    with pytest.raises(AnswerError) as error:  # by the service, which knows its tasks
        client.search_batch(["music", SearchRequest(query="music", task="nope")])
    assert [item.field for item in error.value.errors] == ["searches.1.task"]
    with raises(AnswerError, naming="invalid_request"):
        client.search_batch(["music"] * 65)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, b"<h1>Oh no</h1>", "<h1>Oh no</h1>"),
        (404, b"", "an empty body"),
        (418, b"\xff\xfe", "�"),
        (400, b'{"detail": "something else"}', '{"detail": "something else"}'),
        (500, b"x" * 5000, "x" * 199 + "…"),
    ],
)
def test_another_server_is_quoted(make: Maker, status: int, body: bytes, says: str) -> None:
    error, _ = failure(make, AnswerError, answer(body, status))
    assert (error.status, error.kind) == (status, "unexpected_answer")
    assert error.detail.startswith("No answer of the search service: ")
    assert error.detail.endswith(says)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"hits": 1}', b'{"hits": []}'])
def test_an_answer_that_is_none_is_told(make: Maker, body: bytes) -> None:
    error, asked = failure(make, AnswerError, answer(body))
    assert "The answer is no SearchResponse of this version" in str(error)
    assert (error.status, error.kind, asked) == (200, "unexpected_answer", 1)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (
            answer(b"", 307, location="https://elsewhere.example/search"),
            "leads to 'https://elsewhere.example/search'. Name that one",
        ),
        (answer(b"no gzip", content_encoding="gzip"), "can't be decoded"),
    ],
)
def test_an_answer_that_can_not_be_followed_is_told(make: Maker, step: Step, says: str) -> None:
    error, asked = failure(make, AnswerError, step, api_key="secret")
    assert says in str(error)
    assert asked == 1


def test_fields_that_a_newer_problem_has_are_passed_over(make: Maker) -> None:
    errors = [{"field": "k", "message": "m", "value": 3, "remedy": "r"}]
    error, _ = failure(make, AnswerError, problem(422, "newer_kind", errors=errors))
    assert (error.kind, error.errors[0].message) == ("newer_kind", "m")
