"""The commands that need the service, a module each."""
