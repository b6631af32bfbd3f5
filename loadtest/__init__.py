"""Speed: benchmarks, load tests, and what they are compared with."""
