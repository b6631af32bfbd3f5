"""Query logs: one query a line, as often as it was asked, UTF-8, gzipped or not."""

from collections import Counter
from pathlib import Path

from lightretriever.artifacts.corpus.lines import read_lines, read_text
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.tokens.head_queries import normalised

__all__ = ["most_frequent"]


def most_frequent(log: Path, top: int, *, lowercase: bool) -> list[str]:
    """The `top` most frequent queries of a log as `normalised` writes them, of equally frequent ones the earlier first.

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
