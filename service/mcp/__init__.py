"""A server of the Model Context Protocol (extra `mcp`): a running service as tools of a language model.

It imports the client alone. See docs/howto/mcp.md.
"""
