"""The service as a retriever of other libraries, and to write documents by them. Each module imports the library it is
named after.

`langchain`, `llama_index` and `haystack` each have a `SearchRetriever`; docs/client.md shows how to use them.
"""
