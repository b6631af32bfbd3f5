"""The process that serves: the command, the web server, and worker processes."""
