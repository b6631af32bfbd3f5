"""The one table of bounds on documents. Readers, writers, the manifest, `verify` and the service share it, so that
nothing is refused late, and nothing is read that can't be served."""

from collections.abc import Mapping, Set
from typing import Final

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Largest document: 64 MiB of UTF-8, as a line and as it is stored. Java holds it several times over to write it."""

MAX_ID_BYTES: Final = 512
"""Longest document or query id in UTF-8 bytes. It stands in URLs, logs and run files."""

MAX_COUNTED: Final = 10_000
"""Most different values of a keyword field that are counted at once."""

MAX_NESTING: Final = 100
"""Most objects and lists around a value of a document, the document included. JSON writers stop at 254, and an answer
puts some around it."""

MAX_FIELDS: Final = 10_000
"""Most different names of fields that the documents of a corpus have together; the manifest lists them."""

MAX_FIELD_CHARS: Final = 200
"""Longest name of a field."""

MAX_KEYWORD_BYTES: Final = 32_766
"""Longest keyword in UTF-8 bytes: Lucene's limit for one term."""

MAX_TERM: Final = 1 << 24
"""Token ids are below this, far above any vocabulary: Java keeps a table as long as the largest id."""

MAX_IMPACT: Final = 65_535
"""Largest impact of a term in a document (it fills an unsigned 16-bit number)."""

MAX_DIMENSION: Final = 65_536
"""Most values of a vector."""

MAX_FEEDBACK: Final = 10.0
"""Largest weight of the first document's vector in the feedback of a fusion; the query's vector weighs 1."""


def check_id(value: object) -> str:
    """The id of a document or query. Raises ValueError for what can't be one."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'"_id" must be a non-empty string, found {value!r:.80}')
    if "\n" in value or (size := len(value.encode())) > MAX_ID_BYTES:
        problem = "a line break" if "\n" in value else f"{size:,} bytes"
        raise ValueError(f'"_id" must be at most {MAX_ID_BYTES} bytes without a line break, found {problem}')
    return value


def nesting(value: object, deepest: int) -> int:
    """How deep mappings and lists stand in each other; ends above `deepest`."""
    level, depth = [value], 0
    while depth <= deepest:
        parts = [part for part in level if isinstance(part, dict | list | set | tuple)]
        if not parts:
            break
        depth += 1
        level = [inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)]
    return depth


def new_names(record: Mapping[str, object], seen: Set[str]) -> Set[str]:
    """The names of a document's fields that are not `seen` yet. Raises ValueError for too many or too long ones."""
    names = record.keys() - seen
    for name in names:
        if len(name) > MAX_FIELD_CHARS:
            raise ValueError(
                f'a field\'s name has at most {MAX_FIELD_CHARS} characters, "{name[:40]}…" has {len(name):,}'
            )
    if len(names) + len(seen) > MAX_FIELDS:
        raise ValueError(f'the documents have at most {MAX_FIELDS:,} different fields, "{min(names)}" is one more')
    return names
