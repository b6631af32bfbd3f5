"""An API's description without endless nesting: a schema that holds itself may do so a few times only.

Schemathesis follows such schemas so deep that the C stack ends, and the process with it.
"""

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["shallow"]

_SCHEMAS: Final = "#/components/schemas/"


def shallow(description: dict[str, Any], depth: int) -> dict[str, Any]:
    """The same description, in which schemas that hold themselves are nested up to `depth` times."""
    schemas = description["components"]["schemas"]
    nested = {name for name in schemas if name in _reached(schemas, name)}

    def at(node: Any, level: int) -> Any:
        """A part of the description within `level` of the nested schemas."""
        if isinstance(node, list):
            return [at(item, level) for item in node if not (level == depth and _target(item) in nested)]
        if not isinstance(node, dict):
            return node
        if (name := _target(node)) in nested:
            return {"$ref": f"{_SCHEMAS}{name}{level + 1}"}
        return {key: at(value, level) for key, value in node.items()}

    copies = {f"{name}{level}": at(schemas[name], level) for name in nested for level in range(1, depth + 1)}
    others = {name: at(schema, 0) for name, schema in schemas.items() if name not in nested}
    components = {**description["components"], "schemas": others | copies}
    return {**description, "paths": at(description["paths"], 0), "components": components}


def _target(node: Any) -> str | None:
    """The name of the schema that a reference leads to."""
    reference = node.get("$ref") if isinstance(node, dict) else None
    return reference.removeprefix(_SCHEMAS) if isinstance(reference, str) else None


def _reached(schemas: dict[str, Any], name: str) -> set[str]:
    """The schemas that one holds, directly or not."""
    found, left = set[str](), [name]
    while left:
        for other in _targets(schemas[left.pop()]):
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def _targets(node: Any) -> Iterator[str]:
    if (name := _target(node)) is not None:
        yield name
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _targets(value)
