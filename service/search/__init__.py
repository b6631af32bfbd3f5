"""One search from the query to the hits. Knows nothing of HTTP."""
