"""The HTTP layer: the application, its routes, and the checks on every request."""
