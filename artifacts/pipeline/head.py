"""The head queries of a build: the most frequent ones of a log, which the whole model reads once for every task (see
`artifacts.tokens.head_queries`).
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.strict_json import read_text
from lightretriever.artifacts.errors import CorpusError, ResumeError
from lightretriever.artifacts.files.workdir import check_made
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.store import TextStore, text_digests
from lightretriever.artifacts.tokens.head_queries import HeadQueries, normalised


def head_texts(recipe: Recipe) -> list[str]:
    """The recipe's head queries, none without a section `head`. Raises CorpusError for a bad log."""
    head = recipe.head
    return [] if head is None else most_frequent(head.queries, head.top, lowercase=recipe.encode.lowercase)


def most_frequent(log: Path, top: int, *, lowercase: bool) -> list[str]:
    """The `top` most frequent queries of a log with a query a line, as `normalised` writes them, of equally frequent
    ones the earlier first.

    Raises CorpusError for a file that can't be read, a line that is no text or a JSON object, and a log without
    queries.
    """
    if not log.is_file():
        raise CorpusError(f"head.queries is {log}: there is no such file.", remedy="Give a file with a query a line.")
    counts: Counter[str] = Counter()
    for number, line in read_lines(log):
        if line.lstrip().startswith(b'{"'):
            raise CorpusError(
                f"{log}, line {number}: a JSON object, where the text of a query is expected.",
                remedy="Write the texts alone, as by `jq -r .text`.",
            )
        try:
            counts[normalised(read_text(line), lowercase=lowercase)] += 1
        except ValueError as error:
            raise CorpusError(f"{log}, line {number}: {error}.", remedy="Mend the line, or take it out.") from error
    counts.pop("", None)  # white space that only Unicode knows
    if not counts:
        raise CorpusError(f"head.queries is {log}: it has no query.", remedy="Give a file with a query a line.")
    return [text for text, _ in counts.most_common(top)]


def head_folder(recipe: Recipe, task: str) -> Path:
    """The store of the head queries of a task, as the whole model reads them behind its instruction."""
    return recipe.work / "tables" / task / "head"


def read_heads(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, HeadQueries]:
    """The head queries of every task, as the model of these `facts` (`backbone.json`) reads them. Raises ResumeError
    for other ones than the recipe's."""
    texts, heads = head_texts(recipe), dict[str, HeadQueries]()
    for task, instruction in recipe.tasks.items() if texts else ():
        folder = head_folder(recipe, task)
        now = {"model": facts.get("dense", facts)["fingerprint"], "instruction": instruction}
        check_made(folder / "plan.json", now, "table")
        store, digests = TextStore(folder), text_digests(texts)
        if not store.has(digests).all():
            raise ResumeError(
                f"{folder}: was made of other queries than those of {recipe.head and recipe.head.queries}.",
                remedy="Run `lightretriever build --from table` with this recipe.",
            )
        heads[task] = HeadQueries(texts, store.rows(digests).dense, lowercase=facts["lowercase"])
    return heads
