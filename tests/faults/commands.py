"""`lightretriever` commands in processes of their own that can be killed, stopped, or run out of room for files.

Importing the libraries takes far longer than a tiny build, so a process imports them once (`python -m
tests.faults.commands`) and forks for every command, before any thread or JVM is there. The child tells through a pipe
which stage it has come to, by what it opens and renames.
"""

import importlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

__all__ = ["STAGES", "Command", "Commands", "Done", "finished", "lasted"]

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
    "refine": r"/refined-\d+/",
}
"""Stages in the order in which `build` comes to them, by the path that each opens first; `train` is of `train`, and
`start` of all: they read a recipe, or a bundle."""


_LIBRARIES: Final = (
    "lightretriever.service.cli",
    "lightretriever.artifacts.evaluation.evaluate",
    "lightretriever.artifacts.pipeline.stages",
    "lightretriever.artifacts.training.loop",
)


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


class Commands:
    """Runs commands one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.commands"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: Command) -> Done:
        """Run a command to its end."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("there is no pipe")
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return Done(*json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def _forked(command: Command) -> Done:
    """Fork, and watch the child."""
    output, output_end = os.pipe()
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(output)
        os.close(told)
        _run(command, output_end, telling)
    os.close(output_end)
    os.close(telling)
    said, stages = _watched(child, command, output, told)
    _, status = os.waitpid(child, 0)
    return Done(os.waitstatus_to_exitcode(status), said.decode(errors="replace"), stages)


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
    os.close(output)
    os.close(told)
    return said, stages


def _run(command: Command, output: int, telling: int) -> NoReturn:
    """Be the command."""
    status = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if command.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_bytes, command.file_bytes))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell of the tests may have it ignored
        _tell_stages(telling)
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


def _tell_stages(pipe: int) -> None:
    left = {name.replace(" ", "_"): re.compile(pattern) for name, pattern in STAGES.items()}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not left or not isinstance(arguments[0], str):
            return
        opened = f"{arguments[0]} {str(arguments[1] or 'r')[0]}" if "vectors.partial" in arguments[0] else arguments[0]
        for name in [name for name, pattern in left.items() if pattern.search(opened)]:
            del left[name]
            os.write(pipe, f"{name} ".encode())

    sys.addaudithook(hook)


def main() -> None:
    """Import what the commands need, and run those that stdin names."""
    for module in _LIBRARIES:
        importlib.import_module(module)
    for line in sys.stdin:
        arguments, kill, *more = json.loads(line)
        done = _forked(Command(arguments, None if kill is None else (kill[0], kill[1]), *more))
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
