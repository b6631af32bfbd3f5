"""The serving process: the command, the web server, and worker processes."""
