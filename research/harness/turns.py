"""Measures processes in turns of a few questions, so that a disturbance of the machine affects all of them."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import IO, Any, Final, Self, TypeVar, cast

from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.process import ROOT

__all__ = ["Turns", "Worker", "in_turns"]

Row = dict[str, Any]
T = TypeVar("T")
_LAST: Final = 600


@dataclass(frozen=True)
class Turns:
    """Turns of every side, and questions per turn and side. `warm_up` turns are not counted; in them Java compiles its
    hot code."""

    turns: int = 10
    warm_up: int = 10
    questions: int = 100

    def of(self, questions: Sequence[T], turn: int) -> list[T]:
        """Give the questions of a turn: different ones in every turn, the same for all sides."""
        return list(islice(cycle(questions), turn * self.questions, (turn + 1) * self.questions))


class Worker:
    """A process that searches. It writes `facts` as a line of JSON when it is ready, and another one for every line."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Start it and wait for its facts. Raises LoadError with the end of its stderr if it ends."""
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._input, self._output = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        self.facts = self._answer()

    def ask(self, content: object) -> Row:
        """Send a line, and give the answer. Raises LoadError as at the start."""
        self._input.write(json.dumps(content) + "\n")
        self._input.flush()
        return self._answer()

    def _answer(self) -> Row:
        line = self._output.readline()
        if not line:
            self._process.communicate()
            self._errors.seek(0)
            reason = self._errors.read().decode(errors="replace").strip()[-_LAST:]
            self.close()
            raise LoadError(f"The side {self._name} can't search: {reason or 'it wrote nothing on stderr.'}")
        content: Row = json.loads(line)
        return content

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_turns(sides: int, plan: Turns, work: Callable[[int, int], Row]) -> list[list[Row]]:
    """Run the work for every side and turn, with another side first in every turn."""
    found: list[list[Row]] = [[] for _ in range(sides)]
    for turn in range(plan.warm_up + plan.turns):
        for place in range(sides):
            side = (turn + place) % sides
            row = work(side, turn)
            if turn >= plan.warm_up:
                found[side].append(row)
    return found
