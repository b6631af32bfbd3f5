"""Python clients of the service: `SearchClient`, and `AsyncSearchClient` for asyncio.

The package needs pydantic and httpx2 (extra `client`). See docs/client.md.
"""

from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.errors import AnswerError, ClientError, UnreachableError
from lightretriever.service.client.sync import SearchClient

__all__ = ["AnswerError", "AsyncSearchClient", "ClientError", "SearchClient", "UnreachableError"]
