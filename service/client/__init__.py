"""Calling the service from Python: `SearchClient`, and `AsyncSearchClient` for asyncio.

Importing this loads pydantic, NumPy and httpx2 (extra `client`), and starts nothing. See docs/client.md.
"""

from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.errors import AnswerError, ClientError, UnreachableError
from lightretriever.service.client.retries import Retries
from lightretriever.service.client.sync import SearchClient

__all__ = ["AnswerError", "AsyncSearchClient", "ClientError", "Retries", "SearchClient", "UnreachableError"]
