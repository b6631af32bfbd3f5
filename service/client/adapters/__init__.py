"""The service as a retriever of other libraries, which are loaded only with the module of their name.

`langchain`, `llama_index` and `haystack` each have a `SearchRetriever`; docs/client.md shows how to use them.
"""
