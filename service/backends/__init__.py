"""Backends: the libraries that search the legs."""
