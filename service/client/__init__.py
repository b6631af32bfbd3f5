"""Calling the service from Python: `SearchClient`, and `AsyncSearchClient` for asyncio.

Importing this loads pydantic, NumPy and httpx2 (extra `client`), and starts nothing. See docs/client.md.
"""

from service.client.asynchronous import AsyncSearchClient
from service.client.errors import AnswerError, ClientError, UnreachableError
from service.client.retries import Retries
from service.client.sync import SearchClient

__all__ = ["AnswerError", "AsyncSearchClient", "ClientError", "Retries", "SearchClient", "UnreachableError"]
