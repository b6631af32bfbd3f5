"""`lightretriever` commands in processes of their own that can be killed, stopped, or run out of room for files.

Importing the libraries takes far longer than a tiny build, so a server imports them once and forks for every command.
The child tells through a pipe which stage it has come to, by what it opens and renames.
"""

import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, NoReturn

FORKS: Final = get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "lightretriever.service.cli",
        "lightretriever.artifacts.evaluation.evaluate",
        "lightretriever.artifacts.pipeline.stages",
        "lightretriever.artifacts.training.loop",
        "tests.faults.test_kill",
    ]
)
"""Of all tests in one process: what is forked begins in milliseconds."""

STAGES: Final[dict[str, str]] = {
    "start": r"recipe\.yaml$|train\.yaml$|/bundle/manifest\.json$",
    "begin": r"/work/\.lock$",
    "table": r"/work/tables/",
    "encode": r"/work/encode/",
    "tables of the bundle": r"\.new/tokenizer\.json$",
    "lucene": r"\.new/vectors\.partial a",
    "dense": r"\.new/vectors\.partial r",
    "manifest": r"\.new/manifest\.json$",
    "train": r"/work/log\.jsonl$",
}
"""Stages in the order in which `build` comes to them, by the path that each opens first; `train` is of `train`, and
`start` of all: they read a recipe, or a bundle."""


class Command(NamedTuple):
    """What to run. `kill` is a stage, and after how many seconds of it the `signal` comes. `file_bytes` bounds the size
    of every file that is written, as a full disk would."""

    arguments: list[str]
    kill: tuple[str, float] | None = None
    file_bytes: int | None = None
    signal: int = signal.SIGKILL


class Done(NamedTuple):
    """Exit status (negative: the signal), stdout and stderr in one, and when each stage began, in seconds."""

    status: int
    output: str
    stages: dict[str, float]


def finished(done: Done) -> Done:
    """The same, of a command that ended well."""
    assert done.status == 0, done.output
    return done


def lasted(stages: dict[str, float], stage: str, until: float) -> float:
    """How long a stage took, in seconds; the last one of all took until `until`."""
    return min([began for began in stages.values() if began > stages[stage]], default=until) - stages[stage]


def run(command: Command) -> Done:
    """Run a command to its end."""
    output, output_end = FORKS.Pipe(duplex=False)
    told, telling = FORKS.Pipe(duplex=False)
    with output, told:
        child = FORKS.Process(target=_run, args=(command, output_end, telling))
        child.start()
        output_end.close()
        telling.close()
        said, stages = _watched(child.pid or 0, command, output.fileno(), told.fileno())
        child.join()
    return Done(child.exitcode or 0, said.decode(errors="replace"), stages)


def _watched(child: int, command: Command, output: int, told: int) -> tuple[bytes, dict[str, float]]:
    began, said, stages, kill = time.monotonic(), b"", dict[str, float](), command.kill
    open_pipes, due = {output, told}, float("inf")
    while open_pipes:
        if time.monotonic() >= due:
            os.kill(child, command.signal)
            due = float("inf")
        for pipe in select.select(open_pipes, [], [], max(0.0, min(due - time.monotonic(), 60)))[0]:
            part = os.read(pipe, 65536)
            if not part:
                open_pipes.remove(pipe)
            elif pipe == output:
                said += part
            else:
                for stage in part.decode().split():
                    stages.setdefault(stage.replace("_", " "), time.monotonic() - began)
        if kill is not None and kill[0] in stages and due == float("inf") and open_pipes:
            due, kill = time.monotonic() + kill[1], None
    return said, stages


def _run(command: Command, output: "Connection[object, object]", telling: "Connection[object, object]") -> NoReturn:
    """Be the command."""
    status = 70
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        output.close()
        if command.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_bytes, command.file_bytes))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell of the tests may have it ignored
        _tell_stages(telling.fileno(), command.kill)
        sys.argv = ["lightretriever", *command.arguments]
        from lightretriever.service.cli import main

        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _tell_stages(pipe: int, kill: tuple[str, float] | None) -> None:
    """Write the name of each stage to the pipe as it begins. A stage in which the signal comes at once waits for it."""
    left = {name.replace(" ", "_"): re.compile(pattern) for name, pattern in STAGES.items()}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not left or not isinstance(arguments[0], str):
            return
        opened = f"{arguments[0]} {str(arguments[1] or 'r')[0]}" if "vectors.partial" in arguments[0] else arguments[0]
        for name in [name for name, pattern in left.items() if pattern.search(opened)]:
            del left[name]
            os.write(pipe, f"{name} ".encode())
            if kill == (name.replace("_", " "), 0):
                time.sleep(10)

    sys.addaudithook(hook)
