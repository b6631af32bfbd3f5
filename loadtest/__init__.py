"""Load tests of a bundle's service: a load generator, and a benchmark of the service and of models per query."""
