"""How deep values are nested."""

from math import inf

__all__ = ["nesting"]


def nesting(value: object, deepest: int, most: float = inf) -> tuple[int, int]:
    """How deep mappings and lists stand in each other, and how many values they have; ends above either bound."""
    level, depth, count = [value], 0, 0
    while depth <= deepest and count <= most:
        parts = [part for part in level if isinstance(part, dict | list | set | tuple)]
        if not parts:
            break
        depth, count = depth + 1, count + sum(map(len, parts))
        level = [inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)]
    return depth, count
