"""Systems to compare the service with, each a server of its own with the same `POST /search`."""
