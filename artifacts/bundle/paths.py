"""Names of tasks, and where files lie in a bundle. A bundle may come from a stranger, so no path may leave it."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator

__all__ = ["MANIFEST_FILE", "InsidePath", "TaskName", "head_files", "table_file"]

MANIFEST_FILE: Final = "manifest.json"
_TASK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def table_file(task: str) -> str:
    """Where the table of a task lies in a bundle. Raises ValueError for a name that can't be a file name."""
    return f"tables/{_task_name(task)}.npy"


def head_files(task: str, *, sparse: bool) -> list[str]:
    """Where the head queries of a task lie in a bundle: texts, vectors, and `sparse` weights, if there are any."""
    return [f"heads/{_task_name(task)}{ending}" for ending in (".json", ".npy", ".sparse.npy")[: 2 + sparse]]


def _inside(path: str) -> str:
    """A relative path in POSIX spelling that can't leave the bundle."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or ":" in path or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} is not a plain relative path inside the bundle")
    if path == MANIFEST_FILE:
        raise ValueError(f"{MANIFEST_FILE} can't be listed in itself")
    return path


def _task_name(name: str) -> str:
    if not _TASK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no task name (letters, digits, '_' and '-', at most 64, no '-' or '_' first)")
    return name


InsidePath = Annotated[str, AfterValidator(_inside)]
TaskName = Annotated[str, AfterValidator(_task_name)]
