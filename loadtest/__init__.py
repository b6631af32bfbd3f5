"""Speed: benchmarks, load tests, and other systems for comparison."""
