"""Benchmarks for pytest-benchmark, see docs/speed.md."""
