"""Long texts cut into passages at the best places there are: between paragraphs, lines, sentences, or else words."""

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["passages"]

_BORDERS: Final = tuple(map(re.compile, (r"\n[^\S\n]*\n\s*", r"\n\s*", r"(?<=[.!?])\s+", r"\s+")))
_HEADINGS: Final = re.compile(r"#{1,6} [^\n]*(\n\s*#{1,6} [^\n]*)*")

_Span = tuple[int, int]


def passages(text: str, words: int) -> list[str]:
    """The parts of `text`, in order, each of at most `words` words; [] where there is no word.

    Words are what white space separates, and each is in one passage. Between the first and the last word of a passage,
    the text is as it was. A paragraph that fits is not cut, and a heading (`# …`) is not the end of a passage, as long
    as the paragraph below it fits, too; nor are several in a row.
    """
    whole = text.strip()
    found: list[_Span] = []
    size = words  # the first part begins a passage
    for start, end in _headed(whole, list(_parts(whole, (0, len(whole)), words)), words):
        count = _count(whole, (start, end))
        if size + count > words:
            found.append((start, end))
            size = count
        else:
            found[-1] = (found[-1][0], end)
            size += count
    return [whole[start:end].strip() for start, end in found]


def _parts(text: str, span: _Span, words: int, level: int = 0) -> Iterator[_Span]:
    """The span itself when it fits, else what lies between its borders of this level, cut further where needed."""
    if (count := _count(text, span)) <= words:
        if count:
            yield span
        return
    start, end = span
    for border in _BORDERS[level].finditer(text, *span):
        yield from _parts(text, (start, border.start()), words, level + 1)
        start = border.end()
    yield from _parts(text, (start, end), words, level + 1)


def _headed(text: str, parts: list[_Span], words: int) -> list[_Span]:
    """The parts, each heading, or several in a row, joined with the part below."""
    joined: list[_Span] = []
    for start, end in parts:
        if joined and _HEADINGS.fullmatch(text, *joined[-1]) and _count(text, (joined[-1][0], end)) <= words:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _count(text: str, span: _Span) -> int:
    return len(text[slice(*span)].split())
