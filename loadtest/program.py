"""The command line of a program that measures: its arguments, its errors, and the command as it was typed."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.signals import Stopped, stoppable


class Option(NamedTuple):
    """An argument of a program, as `ArgumentParser.add_argument` takes it."""

    name: str
    settings: dict[str, Any]


def option(name: str, default: Any = None, what: str | None = None, **settings: Any) -> Option:
    """Describe an argument, or an option if its name begins with `--`. `default` is its value, or the type of one that
    has to be given; False makes a switch, a list takes several values, and an option with None may be left out."""
    if isinstance(default, type):
        required = {"required": True} if name.startswith("-") else {}
        return Option(name, {"type": default, "help": what, **required, **settings})
    if default is False:
        return Option(name, {"action": "store_true", "help": what, **settings})
    if default is None:
        return Option(name, {"help": what, **settings})
    several = {"nargs": "+", "type": type(default[0])} if isinstance(default, list) else {"type": type(default)}
    shown = "%(default)s" if what is None else f"{what} (%(default)s)"
    return Option(name, {**several, "default": default, "help": shown, **settings})


BUNDLE: Final = option("bundle", Path)
QUERIES: Final = option("--queries", Path, "folder with queries.jsonl(.gz)")
MODEL: Final = (
    option("--model", None, "the language model that read the documents"),
    option("--adapter", None, "its adapter"),
    option("--bos-token", None, "its first token, as in the bundle's recipe"),
    option("--device", "auto", "where models run; auto: on CUDA if there is one"),
)
ADDRESS: Final = (option("--host", "127.0.0.1"), option("--port", 8080, "port to listen on; 0: a free one"))
REST: Final = Option("--", {})
"""The arguments after `--`, as the list `rest`."""


class Main(Protocol):
    """A program."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run it with its arguments, or those of the process; return the exit status."""


def typed_command(arguments: Sequence[str]) -> str:
    """Return a command line as it was typed, program first, with every path cut to its last name. Where somebody's
    folders lie says nothing about a result."""
    parts = [one.rpartition("=") if one.startswith("-") else ("", "", one) for one in arguments]
    return shlex.join(f"{name}{sign}{Path(value).name if '/' in value else value}" for name, sign, value in parts)


def program(*options: Option) -> Callable[[Callable[[argparse.Namespace], object]], Main]:
    """Make a program of a function of the parsed arguments, which include `command`, the command as it was typed. The
    first paragraph of the module's docstring describes it. A LightRetrieverError is printed, and the status is 2. As a
    process, the first signal raises `Stopped`, so that servers that were started end with the program."""

    def wrap(work: Callable[[argparse.Namespace], object]) -> Main:
        def main(arguments: Sequence[str] | None = None) -> int:
            module, words = sys.modules[work.__module__], list(sys.argv[1:] if arguments is None else arguments)
            name = module.__spec__.name if module.__spec__ else work.__module__
            called = ["python", "-m", name.removesuffix(".__main__")]
            about = (module.__doc__ or "").partition("\n\n")[0]
            parser = argparse.ArgumentParser(prog=" ".join(called), description=about)
            for one in options:
                if one != REST:
                    parser.add_argument(one.name, **one.settings)
            end = words.index("--") if REST in options and "--" in words else len(words)
            given = parser.parse_args(words[:end])
            given.command, given.rest = typed_command([*called, *words]), words[end + 1 :]
            try:
                with stoppable() if arguments is None else nullcontext():
                    work(given)
            except LightRetrieverError as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
            except Stopped as stopped:
                return 128 + stopped.number
            return 0

        main.__doc__ = work.__doc__
        return main

    return wrap
