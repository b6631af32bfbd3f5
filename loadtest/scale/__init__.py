"""What a corpus beyond one machine costs: one shard measured, many simulated, a billion documents on paper."""
