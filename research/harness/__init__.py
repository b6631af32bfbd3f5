"""What several programs share: processes that search in turns, and files of measured rows."""
