"""One search from the query to the hits, independent of HTTP."""
