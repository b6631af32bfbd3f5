"""Several processes of one training run on this machine, by PyTorch's launcher."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import typer
from lightretriever.artifacts.cli.runner import error_info
from lightretriever.artifacts.cli.summary import ErrorInfo
from lightretriever.artifacts.files.workdir import scratch_folder

__all__ = ["launch", "launched"]

_PR_SET_PDEATHSIG: Final = 1  # from linux/prctl.h
_LAUNCHER: Final = "TRAIN_LAUNCHER_PID"
_RAISED: Final = "raised.json"


def launch(count: int) -> ErrorInfo | None:
    """Run this very command in `count` processes; returns the error of the one that failed first.

    What stops this process stops them too: they get SIGTERM, and half a minute to end. When it is killed, so are they.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("LOGLEVEL", "ERROR")  # of the launcher; read when it is imported
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ[_LAUNCHER] = str(os.getpid())
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={count}"]
    ours = "--signals-to-handle=SIGHUP,SIGQUIT"  # the others are handled by the command that calls this
    with scratch_folder(Path(gettempdir()), "train-") as folder:
        try:
            main([*options, ours, f"--log-dir={folder}", "-m", "lightretriever.service.cli", *sys.argv[1:]])
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            return _error(folder, rank, failure.exitcode)
    return None


@contextmanager
def launched() -> Iterator[None]:
    """The block is what a process of `launch` does: it ends with the launching one, which is told of its errors."""
    launcher, file = os.environ.get(_LAUNCHER), os.environ.get("TORCHELASTIC_ERROR_FILE")
    if launcher is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(launcher):  # it was gone before
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        yield
    except Exception as error:
        if file:
            Path(file).with_name(_RAISED).write_text(error_info(error).model_dump_json(), encoding="utf-8")
        raise


def _error(folder: Path, rank: int, status: int) -> ErrorInfo:
    """What the process has told, or else how it ended (below 0 it is a signal), which is said on stderr, too."""
    for told in folder.rglob(f"{rank}/{_RAISED}"):
        return ErrorInfo.model_validate_json(told.read_bytes())
    how = f"with status {status}" if status > 0 else f"by {signal.Signals(-status).name}"
    message = f"Process {rank} of the training ended {how}."
    remedy = "The same command goes on from the last checkpoint."
    typer.echo(f"error: {message} {remedy}", err=True)
    return ErrorInfo(
        kind="ChildProcessError", message=message, remedy=remedy, status=status if status > 0 else 128 - status
    )
