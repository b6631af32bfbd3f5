"""Training sets as the papers' authors publish them: JSON lines of a query, its relevant passages and hard negatives.

    {"query_id": "7", "query": "…", "positive_passages": [{"docid": "3", "title": "…", "text": "…"}],
     "negative_passages": [{"docid": "12", "title": "…", "text": "…"}]}

A passage without an id is named by its text. The same id means the same passage in every line.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.document import read_text
from lightretriever.artifacts.errors import CorpusError

Id = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]


class Passage(BaseModel):
    """A document of a line."""

    docid: Id = ""
    title: str = ""
    text: str

    @property
    def id(self) -> str:
        """Its id, or a digest of its text."""
        return self.docid or sha256(f"{self.title}\n{self.text}".encode()).hexdigest()[:32]


class _Line(BaseModel):
    query_id: Id
    query: str = ""
    positive_passages: list[Passage] = []
    negative_passages: list[Passage] = []


def lines_corpus(path: Path) -> Iterator[Passage]:
    """The passages of a file, each once. Raises CorpusError for a bad line, and for two passages of one id."""
    seen: dict[str, int] = {}
    for number, line in _read(path):
        for passage in [*line.positive_passages, *line.negative_passages]:
            content = hash((passage.title, passage.text))
            if passage.id not in seen:
                yield passage
            elif seen[passage.id] != content:
                raise CorpusError(
                    f'{path}, line {number}: the passage "{passage.id}" has another text than before.',
                    remedy="Give different passages different docids, or none.",
                )
            seen[passage.id] = content


def lines_judged(path: Path) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The queries of a file, and its relevant passages as qrels. Raises CorpusError."""
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for number, line in _read(path):
        if line.query_id in queries or not line.query.strip():
            reason = "has no text" if not line.query.strip() else "stands twice"
            raise CorpusError(f'{path}, line {number}: query "{line.query_id}" {reason}.', remedy="Mend the line.")
        queries[line.query_id] = line.query
        qrels[line.query_id] = {passage.id: 1 for passage in line.positive_passages}
    return queries, qrels


def read_negatives(path: Path) -> dict[str, list[str]]:
    """Ids of hard negatives by query id, in file order: of JSON lines, or of lines of a query's and a document's id,
    separated by a tab; further columns are not read. Raises CorpusError."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return {line.query_id: [one.id for one in line.negative_passages] for _, line in _read(path)}
    negatives: dict[str, list[str]] = {}
    for number, raw in read_lines(path):
        query, *rest = read_text(raw).split("\t")
        if not rest:
            raise CorpusError(
                f"{path}, line {number}: one column, where a query's and a document's id are expected.",
                remedy="Separate them by a tab.",
            )
        negatives.setdefault(query, []).append(rest[0])
    return negatives


def _read(path: Path) -> Iterator[tuple[int, _Line]]:
    for number, raw in read_lines(path):
        try:
            yield number, _Line.model_validate_json(raw)
        except ValidationError as error:
            problem: Any = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"]) or "the line"
            raise CorpusError(
                f"{path}, line {number}: {where}: {problem['msg']}.",
                remedy="A line is a JSON object of query_id, query, positive_passages and negative_passages.",
            ) from error
