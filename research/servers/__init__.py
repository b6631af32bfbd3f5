"""Systems to compare the service with, each a separate server with the same `POST /search`."""
