"""The load: requests as bytes, connections, and counters of outcomes."""
