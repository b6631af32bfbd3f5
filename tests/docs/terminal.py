"""Doing what a page says: its commands in a shell, its service in a second one, its answers compared."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.docs.pages import Block, blocks

_PORT = 8080
_PATIENCE_S = 600


class Terminal:
    """Runs the blocks of pages, top to bottom, in a folder that stands for the checkout.

    A block of `sh` is run as it is written; only where another program has the port 8080, another port stands in its
    place. `lightretriever serve` goes on in a terminal of its own until `stop`. A block of `text` after it has lines
    that it said, numbers apart, and one of `json` has the form of its answer. Other blocks are for reading.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = _free_port()
        self.said = ""
        self.ran: list[str] = []
        self._environment = {**os.environ, **environment, "no_proxy": "127.0.0.1"}
        self._environment["LIGHTRETRIEVER_PORT"] = str(self.port)  # for commands that name none
        self._activated = ""
        self._server: subprocess.Popen[str] | None = None

    def follow(self, page: Path, *, without: frozenset[str] = frozenset()) -> None:
        """Do all that a page says, but the blocks of `without`."""
        for block in blocks(page):
            if block.language == "sh" and block.text not in without:
                self.run(block.text)
            elif block.language in ("text", "json"):
                differences = self.compare(block)
                assert differences == [], f"{page.name} says\n{block.text}\nbut it was\n{self.said}"

    def run(self, script: str) -> None:
        """Run the commands of a block, or start a service; what they print is then `said`."""
        self.ran.append(script)
        if ". .venv/bin/activate\n" in script:
            self._activated = ". .venv/bin/activate\n"
        command = ["bash", "-c", f"set -e\n{self._activated}{script.replace(str(_PORT), str(self.port))}"]
        if script.startswith("lightretriever serve "):
            self._start(command)
            return
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        self.said = done.stdout
        assert done.returncode == 0, f"{script}\n{done.stdout}"

    def compare(self, block: Block) -> list[str]:
        """What the block has, and was not said."""
        if block.language == "json":
            shown, answer = json.loads(block.text), json.loads(self.said)
            if "hits" not in shown:  # a part of the answer
                answer = {key: value for key, value in answer.items() if key in shown}
            return form_differences(shown, answer)
        said = set(map(_without_numbers, self.said.splitlines()))
        return [line for line in block.text.splitlines() if _without_numbers(line) not in said]

    def stop(self) -> int:
        """Press Ctrl-C where the service runs, and wait for its end: its exit status."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGINT)
        return self._server.wait(_PATIENCE_S)

    def _start(self, command: list[str]) -> None:
        self._server = subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._server.stdout is not None
        self.said = self._server.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            if self._server.poll() is None:
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()


def form_differences(told: Any, found: Any, place: str = "answer") -> list[str]:
    """Where a JSON value differs in form: in keys and in types. Of lists the first elements are compared."""
    if isinstance(told, dict) and isinstance(found, dict):
        keys = [f"{place}.{key}: on one side only" for key in sorted(told.keys() ^ found.keys())]
        shared = [key for key in told if key in found]
        return [*keys, *(line for key in shared for line in form_differences(told[key], found[key], f"{place}.{key}"))]
    if isinstance(told, list) and isinstance(found, list):
        if not told or not found:
            return [] if told == found else [f"{place}: {len(found)} elements instead of {len(told)}"]
        return form_differences(told[0], found[0], f"{place}[0]")
    if place.endswith(".rank") and found is None:
        return []  # a leg need not propose a hit
    kinds = [float if type(value) is int else type(value) for value in (told, found)]
    return [] if kinds[0] is kinds[1] else [f"{place}: {found!r} instead of {told!r}"]


def _without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.,]*", "N", line)


def _free_port() -> int:
    """8080, as on the pages, or another port where that one is taken."""
    for port in (_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError("there is no free port")
