"""Memory management of a process after start-up."""

import gc

__all__ = ["freeze_gc"]


def freeze_gc() -> None:
    """Exempt all present objects from Python's cycle collector.

    A full collection stops every thread while it visits every object, and most objects of a serving process belong to
    modules, which stay. Collects previously frozen objects first: a replaced bundle may be among them. This changes the
    collector of the whole process: call it only in a process that serves.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
