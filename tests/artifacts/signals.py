"""A signal at a known moment of a command."""

from pathlib import Path

__all__ = ["signal_after"]

_SCRIPT = """
import os, signal, sys
from pathlib import Path

replace = os.replace


def replace_and_signal(source, target):
    replace(source, target)
    if os.fspath(target) == {target!r}:
        os.kill(os.getpid(), signal.SIGTERM)


os.replace = replace_and_signal
sys.argv[0] = "lightretriever"
from lightretriever.service.cli import main

main()
"""


def signal_after(target: Path) -> str:
    """A program, for `python -c`, that runs `lightretriever` and gets SIGTERM as soon as a new file has this name."""
    return _SCRIPT.format(target=str(target))
