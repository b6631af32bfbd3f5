"""Cuts a text into passages of at most so many words, or tokens of a model.

Words are what white space separates, or parts of it: each character of Chinese and Japanese, six characters of other
scripts without spaces, a hundred letters of a longer word.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_Span = tuple[int, int]
_Count = Callable[[str], int]
_MAX_WORD: Final = 100  # letters

# Chinese, Japanese and other signs of words or syllables, such as Yi and Tangut: each counts as a word. Other scripts
# without spaces, Thai to Javanese: each six characters, with the marks that belong to them. A word of more than a
# hundred letters, such as an address, counts as several.
_HAN: Final = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u30ff\u3105-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    r"\uff66-\uff9f\ua000-\ua48f\U00016fe0-\U00018d8f\U0001aff0-\U0001b2ff\U00020000-\U0003ffff"
)
_SIGNS: Final = r"\u3001-\u3004\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
_UNSPACED: Final = r"\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a00-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf"
_MARKS: Final = "".join(chr(code) for code in range(0xE00, 0xAAE0) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
_WORD: Final = re.compile(
    rf"[{_HAN}][{_SIGNS}]*|[{_UNSPACED}]{{1,6}}[{_MARKS}]*|[^\s{_HAN}{_UNSPACED}]{{1,{_MAX_WORD}}}"
)
_BORDERS: Final = tuple(map(re.compile, (r"\n[^\S\n]*\n\s*", r"\n\s*", r"(?<=[.!?])\s+|(?<=[。！？])\s*", r"\s+")))
_HEADINGS: Final = re.compile(r"#{1,6} [^\n]*(\n\s*#{1,6} [^\n]*)*")


def _words(text: str) -> int:
    """How many words a text has. A short one of a script before Thai counts as one: all of these have spaces."""
    return sum(
        1 if len(word) <= _MAX_WORD and (word.isascii() or max(word) < "\u0e00") else len(_WORD.findall(word))
        for word in text.split()
    )


class Heading(NamedTuple):
    """A heading of a Markdown text: the place of its line's first character, its level from 1 on, and its text."""

    offset: int
    level: int
    text: str


@dataclass(frozen=True)
class Limit:
    """How large a passage may be: it has at most `most` of what `count` counts, its title included where `titled`."""

    most: int
    count: Callable[[str], int] = _words
    titled: bool = False

    def below(self, title: str) -> int:
        """The size of the largest text below a title; at least half of all, however long the title is."""
        return max(self.most - self.count(title), self.most // 2, 1) if self.titled else self.most


class Passage(NamedTuple):
    """A part of a text. Its title is that of the text, and the headings that it is below and doesn't begin with, from
    the uppermost on, behind it."""

    title: str
    text: str


def passages(text: str, limit: Limit, title: str = "", headings: Sequence[Heading] = ()) -> list[Passage]:
    """The parts of `text`, in order, none larger than `limit` allows below its title; [] where there is no word.

    Each word is in one passage. Between the first and the last word of a passage, the text is as it was. A paragraph
    that fits is not cut, and a heading (`# …`) is not the end of a passage, as long as the paragraph below it fits,
    too; nor are several in a row. A passage from the middle of a section has its `headings` in the title, as far as
    they take up no more than a quarter of it.
    """
    begin, whole = len(text) - len(text.lstrip()), text.strip()
    above = [Heading(heading.offset - begin, heading.level, heading.text) for heading in headings]
    most, count = limit.below(title), limit.count
    if limit.titled and above and count(whole) > most:
        paths = [_path(above, heading.offset + 1, limit, title) for heading in above]
        most = min(limit.below(" / ".join([title, *path])) for path in paths)
    spans: list[_Span] = []
    filled = most  # the first part begins a passage
    for start, end in _headed(whole, _parts(whole, (0, len(whole)), most, count), most, count):
        size = count(whole[start:end])
        if filled + size > most:
            spans.append((start, end))
            filled = size
        else:
            spans[-1] = (spans[-1][0], end)
            filled += size
    titles = [" / ".join([title, *_path(above, start, limit, title)]) for start, _ in spans]
    return [Passage(name, whole[start:end].strip()) for name, (start, end) in zip(titles, spans, strict=True)]


def _path(headings: list[Heading], start: int, limit: Limit, title: str) -> list[str]:
    """The headings above a passage that begins at `start`; of too long a path the last ones alone."""
    path: list[Heading] = []
    for heading in headings:
        if heading.offset > start:
            break
        path = [upper for upper in path if upper.level < heading.level]
        if heading.offset < start:
            path.append(heading)
    texts = [heading.text for heading in path]
    while texts and limit.count(" / ".join(texts)) > limit.below(title) // 4:
        del texts[0]
    return texts


def _parts(text: str, span: _Span, most: int, count: _Count, level: int = 0) -> Iterator[_Span]:
    """The span itself when it fits, else what lies between its borders of this level, cut further where needed."""
    start, end = span
    if (size := count(text[start:end])) <= most:
        if size:
            yield span
        return
    if level == len(_BORDERS):
        for word in _WORD.finditer(text, *span):
            yield from _halves(text, word.span(), most, count)
        return
    for border in _BORDERS[level].finditer(text, *span):
        yield from _parts(text, (start, border.start()), most, count, level + 1)
        start = border.end()
    yield from _parts(text, (start, end), most, count, level + 1)


def _halves(text: str, span: _Span, most: int, count: _Count) -> Iterator[_Span]:
    """A word, or parts of one that is too large by itself, such as an address of many tokens."""
    start, end = span
    if end - start == 1 or count(text[start:end]) <= most:
        yield span
        return
    middle = (start + end) // 2
    yield from _halves(text, (start, middle), most, count)
    yield from _halves(text, (middle, end), most, count)


def _headed(text: str, parts: Iterator[_Span], most: int, count: _Count) -> list[_Span]:
    """The parts, each heading, or several in a row, joined with the part below."""
    joined: list[_Span] = []
    for start, end in parts:
        if joined and _HEADINGS.fullmatch(text, *joined[-1]) and count(text[joined[-1][0] : end]) <= most:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
