"""The service as retrievers and stores of other libraries, a module each (docs/client.md)."""
