"""A signal at a known moment of a command."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


@contextmanager
def signal_after(target: Path) -> Iterator[None]:
    """This process, which runs a command meanwhile, gets SIGTERM as soon as a new file has this name."""
    replace = os.replace

    def replace_and_signal(source: str | Path, destination: str | Path) -> None:
        replace(source, destination)
        if Path(destination) == target:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch.object(os, "replace", replace_and_signal):
        yield
