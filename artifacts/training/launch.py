"""Several processes of one training run on this machine, by PyTorch's launcher."""

import os
import sys

__all__ = ["launch"]


def launch(count: int) -> int:
    """Run this very command in `count` processes; returns 0, or the exit status of the one that failed first.

    What stops this process stops them too: they get SIGTERM, and half a minute to end.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("LOGLEVEL", "ERROR")  # of the launcher; read when it is imported
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={count}"]
    ours = "--signals-to-handle=SIGHUP,SIGQUIT"  # the others are handled by the command that calls this
    try:
        main([*options, ours, "-m", "service.cli", *sys.argv[1:]])
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 128 - status  # below 0 it is a signal
    return 0
