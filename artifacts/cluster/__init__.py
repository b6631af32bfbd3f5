"""A bundle's documents, vectors and impacts on an OpenSearch cluster: the format, writing, and searching."""
