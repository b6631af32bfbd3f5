"""Reading files that may be anything: a pipe, a device, a link to itself, YAML that grows when it is read."""

import hashlib
import os
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import yaml

MAX_YAML_BYTES: Final = 1 << 20  # of the largest YAML file that is read


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, without waiting. OSError for what is none, such as a folder or a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError, also for a larger one."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(0, f"it has more than {most:,} bytes", str(path))
    return content


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_yaml(path: Path) -> Any:
    """The content of a YAML file of at most 1 MiB. Raises OSError, and ValueError as `parse_yaml` does."""
    return parse_yaml(read_bounded(path, MAX_YAML_BYTES))


def parse_yaml(content: bytes | str) -> Any:
    """Parse a YAML text. Raises ValueError for text that is not YAML, is nested too deep, names a key twice, or has an
    alias, which multiplies."""
    try:
        return yaml.load(content, _Loader)
    except yaml.MarkedYAMLError as error:  # its own text repeats the line, which may hold a secret
        mark = error.problem_mark or error.context_mark
        position = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{error.problem or error.context}{position}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that there is not
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def line_of(content: bytes | str, path: Sequence[str | int]) -> int:
    """The line, from 1, of the value at a place in a YAML text that `parse_yaml` reads: the keys and positions that
    lead to it. Of a place that is not there, the line of what is around it."""
    node = yaml.compose(content, _Loader)
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == str(part)), None) or node
    return 1 if node is None else node.start_mark.line + 1


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, whose first value would be lost, and aliases, which multiply."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*) are not read, write the value out again,", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            keys = [self.construct_object(key) for key, _ in node.value]
            index = next(index for index, key in enumerate(keys) if key in keys[:index])
            mark = node.value[index][0].start_mark
            raise yaml.MarkedYAMLError(problem=f"the key {keys[index]!r:.80} stands twice", problem_mark=mark)
        return mapping
