"""Programs for research: they measure quality and speed, compare with other systems, and write the pages' tables.

They run from a checkout, as `python -m research.…`, and are in no wheel. Nothing else imports them.
"""
