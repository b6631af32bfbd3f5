"""What several programs share: processes that search in turns."""
