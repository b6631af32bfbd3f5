"""Files that are written whole or not at all, shards, and arrays."""
