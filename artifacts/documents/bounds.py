"""The one table of bounds on documents. Readers, writers, the manifest, `verify` and the service share it, so that
nothing is refused late, and nothing is read that can't be served."""

from collections.abc import Mapping, Set
from typing import Final

MAX_DOCUMENT_BYTES: Final = 64 << 20  # of a document in UTF-8, as a line and as stored; Java holds it several times
MAX_ID_BYTES: Final = 512  # of the id of a document or query in UTF-8; it stands in URLs, logs and run files
MAX_COUNTED: Final = 10_000  # different values of a keyword field that are counted at once
MAX_NESTING: Final = 100  # objects and lists around a value of a document; JSON writers stop at 254, answers add some
MAX_FIELDS: Final = 10_000  # different names of fields of all documents of a corpus; the manifest lists them
MAX_FIELD_CHARS: Final = 200  # of the name of a field
MAX_KEYWORD_BYTES: Final = 32_766  # of a keyword in UTF-8: Lucene's limit for one term
MAX_TERM: Final = 1 << 24  # token ids are below, far above any vocabulary: Java keeps a table as long as the largest id
MAX_IMPACT: Final = 65_535  # of a term in a document; it fills an unsigned 16-bit number
MAX_DIMENSION: Final = 65_536  # values of a vector
MAX_FEEDBACK: Final = 10.0  # weight of the first document's vector in the feedback of a fusion; the query's weighs 1


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
    while depth <= deepest and (parts := [part for part in level if isinstance(part, dict | list | set | tuple)]):
        depth += 1
        level = [inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)]
    return depth


def new_names(record: Mapping[str, object], seen: Set[str]) -> Set[str]:
    """The names of a document's fields that are not `seen` yet. Raises ValueError for too many or too long ones."""
    names = record.keys() - seen
    for name in names:
        if len(name) > MAX_FIELD_CHARS:
            raise ValueError(f"a field's name has at most {MAX_FIELD_CHARS} characters, {name!r:.40} has {len(name):,}")
    if len(names) + len(seen) > MAX_FIELDS:
        raise ValueError(f'the documents have at most {MAX_FIELDS:,} different fields, "{min(names)}" is one more')
    return names
