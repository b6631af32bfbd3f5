"""Query vectors in the form of OpenAI's API, asked for by its own client."""

import base64

import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.live import live_bundles
from tests.support.wordings import raises

TEXTS = ["play music", "edit text"]


@pytest.fixture(scope="module")
def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none is needed", timeout=90, max_retries=0)


def test_openais_client_gets_the_vectors_that_a_search_uses(openai_client: openai.OpenAI, client: TestClient) -> None:
    encoded = [client.post("/encode", json={"text": text}).json() for text in TEXTS]
    answer = openai_client.embeddings.create(model="default", input=TEXTS)  # it asks for base64
    floats = openai_client.embeddings.create(model="default", input=TEXTS, encoding_format="float")
    packed = client.post(
        "/v1/embeddings", json={"model": "default", "input": TEXTS, "encoding_format": "base64"}
    ).json()
    for place, expected in enumerate(encoded):
        assert answer.data[place].index == place
        assert answer.data[place].embedding == floats.data[place].embedding == expected["dense"]
        raw = base64.b64decode(packed["data"][place]["embedding"])
        assert np.frombuffer(raw, "<f4").tolist() == expected["dense"]
    tokens = sum(token["count"] for one in encoded for token in one["tokens"])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_one_text_and_the_bundles_name(openai_client: openai.OpenAI, tiny_bundle: Bundle) -> None:
    name, dimension = tiny_bundle.manifest.name, tiny_bundle.manifest.dimension
    answer = openai_client.embeddings.create(model=name, input="music", dimensions=dimension, user="me")
    assert answer.model == name
    assert len(answer.data[0].embedding) == dimension


@pytest.mark.parametrize("model", ["text-embedding-3-small", "ada", "default", "x" * 300])
def test_a_model_that_is_no_task_is_the_default_task(client: TestClient, model: str) -> None:
    """Clients have to send some name, and many send one of OpenAI's."""
    answer = client.post("/v1/embeddings", json={"model": model, "input": "music"}).json()
    assert answer["model"] == model
    assert answer["data"][0]["embedding"] == client.post("/encode", json={"text": "music"}).json()["dense"]


def test_null_is_the_default_format(client: TestClient) -> None:
    asked = {"model": "default", "input": "music"}
    given = {"encoding_format": None, "dimensions": None, "user": None}
    assert client.post("/v1/embeddings", json=asked | given).json() == client.post("/v1/embeddings", json=asked).json()


def test_openais_client_lists_the_tasks(openai_client: openai.OpenAI, tiny_bundle: Bundle) -> None:
    found = openai_client.models.list().data
    assert [one.id for one in found] == list(tiny_bundle.manifest.tasks)
    assert found[0].id == tiny_bundle.manifest.default_task
    assert found[0].owned_by == tiny_bundle.manifest.name


def test_openais_client_shows_the_reason_of_a_collection_too(openai_client: openai.OpenAI, tiny_bundle: Bundle) -> None:
    with live_bundles({"notes": tiny_bundle.path, "shop": tiny_bundle.path}) as url:
        of_collection = openai.OpenAI(base_url=f"{url}/collections/shop/v1", api_key="none", max_retries=0)
        assert of_collection.embeddings.create(model="default", input="music").data
        for client in (openai_client, of_collection):
            with raises(openai.UnprocessableEntityError, naming="422"):
                client.embeddings.create(model="ada", input="music", dimensions=7)
