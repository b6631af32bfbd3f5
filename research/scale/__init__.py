"""The cost of a corpus beyond one machine: one shard measured, many simulated, a billion documents on paper."""
