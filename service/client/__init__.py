"""Python clients of the service, which need the extra `client` (docs/client.md)."""

from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.errors import AnswerError, ClientError, UnreachableError
from lightretriever.service.client.sync import SearchClient

__all__ = ["AnswerError", "AsyncSearchClient", "ClientError", "SearchClient", "UnreachableError"]
