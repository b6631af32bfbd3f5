"""Shared by the tests of the service."""

from hypothesis import settings

# No deadline per example: a busy machine would fail the test, not the code.
settings.register_profile("service", deadline=None)
settings.load_profile("service")
