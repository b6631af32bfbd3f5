"""The collections of a process: named bundles, each swapped alone, with metrics in common."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.errors import NotFoundError, SettingsError, shortened
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.settings import Settings

DEFAULT: Final = "default"
"""The name of a collection that was given none."""

Folders = Mapping[str, Path]
"""Bundles by the names of their collections."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Collections:
    """The holders by name; the first is meant where a request names none."""

    def __init__(self, holders: Mapping[str, EngineHolder]) -> None:
        self._holders = dict(holders)
        self._stack = ExitStack()

    @classmethod
    def open(cls, folders: Folders, settings: Settings) -> Self:
        """Open the bundle of each folder; `close` closes them. Errors as in `EngineHolder.open`, and SettingsError for
        several collections on one index of a cluster or with one journal."""
        for single in ("opensearch_url", "live"):
            if len(folders) > 1 and getattr(settings, single) is not None:
                raise SettingsError(
                    f"There are {len(folders)} collections, but setting '{single}' names one index or journal.",
                    remedy="It belongs to one collection: serve each by a process of its own.",
                )
        metrics = Metrics()
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(EngineHolder.open(folder, settings, name=name, metrics=metrics))
                for name, folder in folders.items()
            }
            collections = cls(opened)
            collections._stack = stack.pop_all()
        return collections

    @property
    def first(self) -> EngineHolder:
        """The collection that is meant where a request names none."""
        return next(iter(self._holders.values()))

    @property
    def metrics(self) -> Metrics:
        """The metrics of all."""
        return self.first.metrics

    def __iter__(self) -> Iterator[EngineHolder]:
        """Return every collection's holder."""
        return iter(self._holders.values())

    def of(self, name: str | None) -> EngineHolder:
        """Return a collection's holder, None: of the first. NotFoundError."""
        if name is None:
            return self.first
        try:
            return self._holders[name]
        except KeyError:
            names = shortened(", ".join(self._holders), 300)
            raise NotFoundError(f"There is no collection {name[:100]!r}; there are: {names}.") from None

    def close(self) -> None:
        """Close what `open` opened."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def parse_folders(arguments: list[str]) -> dict[str, Path]:
    """Read the arguments of `serve`: one folder, or NAME=FOLDER for each collection. SettingsError."""
    if len(arguments) == 1 and ("=" not in arguments[0] or Path(arguments[0]).exists()):
        return {DEFAULT: Path(arguments[0])}
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals or not folder or not _NAME.fullmatch(name):
            raise SettingsError(
                f"{argument!r} does not name a collection and its bundle.",
                remedy="Write NAME=FOLDER; a name has 1 to 64 letters, digits, dots, dashes or underscores.",
            )
        if name in folders:
            raise SettingsError(f"The collection {name!r} is given twice.", remedy="Give each a name of its own.")
        folders[name] = Path(folder)
    return folders
