"""Query vectors for clients of OpenAI's API, as each asks by default: LiteLLM, LangChain, LlamaIndex, Haystack.

OpenAI's own client is in tests/service/test_embeddings.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

# Read when the library is imported: without it Haystack reports its use to its makers.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"

from haystack.components.embedders import OpenAITextEmbedder
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from pydantic import SecretStr

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import SearchClient
from tests.service.process import serving
from tests.support.keys import keys_file, new_key

pytestmark = pytest.mark.slow

KEY, ENTRY = new_key("client", ["search"])
TEXTS = ["play music", "edit text"]
LITELLM = """
import json, sys, litellm
provider, base, key, *texts = sys.argv[1:]
answer = litellm.embedding(model=f"{provider}/default", api_base=base, api_key=key, input=texts)
print(json.dumps([one["embedding"] for one in answer.data]))
"""
Ask = Callable[[str, list[str]], list[list[float]]]
"""Vectors of texts, from the address of the API."""


def of_litellm(base: str, texts: list[str], provider: str = "openai") -> list[list[float]]:
    """Its requests have `"encoding_format": null`. In a process of its own: it leaves event loops and clients open."""
    script = [sys.executable, "-W", "ignore", "-c", LITELLM, provider, base, KEY, *texts]
    done = subprocess.run(script, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    vectors: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return vectors


def of_litellm_as_of_vllm(base: str, texts: list[str]) -> list[list[float]]:
    """Its requests come from its own HTTP client."""
    return of_litellm(base, texts, "hosted_vllm")


def of_langchain(base: str, texts: list[str]) -> list[list[float]]:
    """As docs/howto/embeddings.md says: by default it sends token ids."""
    key = SecretStr(KEY)
    client = OpenAIEmbeddings(model="default", base_url=base, api_key=key, check_embedding_ctx_length=False)
    vectors: list[list[float]] = client.embed_documents(texts)
    return vectors


def of_llama_index(base: str, texts: list[str]) -> list[list[float]]:
    """Replaces line breaks by spaces."""
    client = OpenAIEmbedding(model_name="default", api_base=base, api_key=KEY)
    vectors: list[list[float]] = client.get_text_embedding_batch(texts)
    return vectors


def of_haystack(base: str, texts: list[str]) -> list[list[float]]:
    embedder = OpenAITextEmbedder(model="default", api_base_url=base, api_key=Secret.from_token(KEY))
    return [embedder.run(text)["embedding"] for text in texts]


@pytest.fixture(scope="module")
def url(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server with a key."""
    keys = keys_file(tmp_path_factory.mktemp("keys"), ENTRY)
    settings = {"LIGHTRETRIEVER_LOG_LEVEL": "error", "LIGHTRETRIEVER_API_KEYS_FILE": str(keys)}
    with serving(tiny_bundle.path, settings) as url:
        yield url


@pytest.mark.parametrize("ask", [of_litellm, of_litellm_as_of_vllm, of_langchain, of_llama_index, of_haystack])
def test_each_gets_the_vectors_that_a_search_uses(ask: Ask, url: str) -> None:
    with SearchClient(url, api_key=KEY, timeout_s=120) as client:
        expected = [client.encode(text).dense for text in TEXTS]
    assert ask(f"{url}/v1", TEXTS) == expected


@pytest.mark.parametrize("ask", [of_litellm, of_langchain, of_llama_index, of_haystack])
def test_each_shows_the_reason_of_a_refusal(ask: Ask, url: str) -> None:
    with pytest.raises(Exception, match="white space only"):
        ask(f"{url}/v1", [" "])
