"""The load: requests as bytes, connections, and what became of each request."""
