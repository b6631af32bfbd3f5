"""What the service and the pipeline do when things break, on real parts.

Every test runs at two lengths: short, as part of all tests, and in full by `make faults`, which also records the
figures of docs/lab/method.md.
"""
