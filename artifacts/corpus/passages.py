"""Cuts a text into passages, by words or by what a model reads of a text: the tokens of its own tokenizer."""

import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tokenizers import Tokenizer

from lightretriever.artifacts.corpus.markdown import Heading
from lightretriever.artifacts.errors import BundleError, ModelError, importing
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["Limit", "Passage", "TokenLimit", "WordLimit", "passages"]

_Span = tuple[int, int]
_Size = Callable[[_Span], int]
_MAX_WORD: Final = 100  # letters
_MAX_TOKENS: Final = 512
"""Of a passage, where a model reads more: longer ones say too many things for one vector."""
_MIN_TOKENS: Final = 16
_MARGIN: Final = 2
"""Tokens that a text may have more than its parts."""
_ENDLESS: Final = 1_000_000
"""A longest text from here on is none, as tokenizers say it that have no limit."""
_OFFSET_MODELS: Final = ("roberta", "mpnet", "camembert")
"""Model types whose positions begin behind that of padding, so that 514 hold 512 tokens."""


class Limit(Protocol):
    """How large a passage may be."""

    def most(self, title: str) -> int:
        """The size of the largest passage below a title."""

    def sizes(self, text: str) -> _Size:
        """Return a function that measures a span of a text."""


@dataclass(frozen=True)
class WordLimit:
    """At most so many `words`, without the title.

    Words are what white space separates, or parts of it: each character of Chinese and Japanese, six characters of
    other scripts without spaces, a hundred letters of a longer word.
    """

    words: int

    def most(self, title: str) -> int:
        """The words of the largest passage below a title."""
        return self.words

    def sizes(self, text: str) -> _Size:
        """Return a function that counts the words of a span."""
        return lambda span: sum(map(_words, text[slice(*span)].split()))


@dataclass(frozen=True)
class TokenLimit:
    """At most so many `tokens` of a model, with those of the title and those that frame a text (`framing`)."""

    tokenizer: TextTokenizer
    tokens: int
    framing: int

    @classmethod
    def of_model(cls, source: str, tokens: int | None = None) -> "TokenLimit":
        """Return the limit for a model, a folder or a Hugging Face id: `tokens`, or as many as it reads, at most 512.

        Raises ModelError where it has no tokenizer.json, or does not say how much it reads.
        """
        content = _file(source, "tokenizer.json")
        if content is None:
            raise ModelError(
                f"{source}: has no tokenizer.json.", remedy="Give the folder or the Hugging Face id of the model."
            )
        try:
            tokenizer = TextTokenizer.from_bytes(content, name=f"{source}: tokenizer.json")
        except BundleError as error:
            raise ModelError(error.message, remedy=error.remedy) from error
        longest = _longest(source)
        if tokens is None and longest is None:
            raise ModelError(
                f"{source}: does not say how many tokens it reads.", remedy="Say it by --tokens, such as --tokens 256."
            )
        if tokens is not None and longest is not None and tokens > longest:
            raise ModelError(f"--tokens {tokens}: {source} reads {longest}.", remedy="Lower --tokens.")
        framing = Tokenizer.from_buffer(content).num_special_tokens_to_add(False)
        return cls(tokenizer, tokens or min(longest or _MAX_TOKENS, _MAX_TOKENS), framing)

    def most(self, title: str) -> int:
        """The tokens of the largest passage below a title; at least half of all, however long the title is."""
        room = self.tokens - self.framing - _MARGIN
        return max(room - len(self.tokenizer.encode(title)), room // 2, 1)

    def sizes(self, text: str) -> _Size:
        """Return a function that counts the tokens that begin in a span."""
        starts = [start for _, start, _ in self.tokenizer.spans(text)]
        return lambda span: bisect_left(starts, span[1]) - bisect_left(starts, span[0])


@dataclass(frozen=True)
class Passage:
    """A part of a text, and the headings that it is below and doesn't begin with, from the uppermost on."""

    text: str
    headings: list[str]

    def title(self, whole: str) -> str:
        """The title of the passage: that of the `whole` text, and the headings behind it."""
        return _joined(whole, self.headings)


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


def passages(text: str, limit: Limit, title: str = "", headings: list[Heading] | None = None) -> list[Passage]:
    """The parts of `text`, in order, none larger than `limit` allows; [] where there is no word.

    Each word is in one passage. Between the first and the last word of a passage, the text is as it was. A paragraph
    that fits is not cut, and a heading (`# …`) is not the end of a passage, as long as the paragraph below it fits,
    too; nor are several in a row. A passage from the middle of a section has its `headings`, as far as they take up no
    more than a quarter of it.
    """
    begin = len(text) - len(text.lstrip())
    whole, size = text.strip(), limit.sizes(text.strip())
    above = [Heading(one.offset - begin, one.level, one.text) for one in headings or ()]
    most = limit.most(title)
    if isinstance(limit, TokenLimit) and above and size((0, len(whole))) > most:
        paths = [_path(above, one.offset + 1, limit, title) for one in above]
        most = min(limit.most(_joined(title, path)) for path in paths)
    found: list[_Span] = []
    filled = most  # the first part begins a passage
    for start, end in _headed(whole, list(_parts(whole, (0, len(whole)), most, size)), most, size):
        count = size((start, end))
        if filled + count > most:
            found.append((start, end))
            filled = count
        else:
            found[-1] = (found[-1][0], end)
            filled += count
    return [Passage(whole[start:end].strip(), _path(above, start, limit, title)) for start, end in found]


def _joined(title: str, path: list[str]) -> str:
    return " / ".join([title, *path])


def _path(headings: list[Heading], start: int, limit: Limit, title: str) -> list[str]:
    """The headings above a passage that begins at `start`; of too long a path the last ones alone."""
    path: list[Heading] = []
    for one in headings:
        if one.offset > start:
            break
        path = [upper for upper in path if upper.level < one.level]
        if one.offset < start:
            path.append(one)
    texts = [one.text for one in path]
    while texts and limit.sizes(line := " / ".join(texts))((0, len(line))) > limit.most(title) // 4:
        del texts[0]
    return texts


def _parts(text: str, span: _Span, most: int, size: _Size, level: int = 0) -> Iterator[_Span]:
    """The span itself when it fits, else what lies between its borders of this level, cut further where needed."""
    if (count := size(span)) <= most:
        if count:
            yield span
        return
    start, end = span
    if level == len(_BORDERS):
        for word in _WORD.finditer(text, *span):
            yield from _halves(word.span(), most, size)
        return
    for border in _BORDERS[level].finditer(text, *span):
        yield from _parts(text, (start, border.start()), most, size, level + 1)
        start = border.end()
    yield from _parts(text, (start, end), most, size, level + 1)


def _halves(span: _Span, most: int, size: _Size) -> Iterator[_Span]:
    """A word, or parts of one that is too large by itself, such as an address of many tokens."""
    start, end = span
    if end - start == 1 or size(span) <= most:
        yield span
        return
    middle = (start + end) // 2
    yield from _halves((start, middle), most, size)
    yield from _halves((middle, end), most, size)


def _headed(text: str, parts: list[_Span], most: int, size: _Size) -> list[_Span]:
    """The parts, each heading, or several in a row, joined with the part below."""
    joined: list[_Span] = []
    for start, end in parts:
        if joined and _HEADINGS.fullmatch(text, *joined[-1]) and size((joined[-1][0], end)) <= most:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _words(word: str) -> int:
    if len(word) <= _MAX_WORD and (word.isascii() or max(word) < "\u0e00"):  # before Thai, all scripts have spaces
        return 1
    return sum(1 for _ in _WORD.finditer(word))


def _longest(source: str) -> int | None:
    """How many tokens a model reads, by the files that say so."""
    said = [
        _number(_json(source, "sentence_bert_config.json"), "max_seq_length"),
        _number(_json(source, "tokenizer_config.json"), "model_max_length"),
    ]
    config = _json(source, "config.json")
    positions = _number(config, "max_position_embeddings")
    if positions is not None and any(kind in str(config.get("model_type")) for kind in _OFFSET_MODELS):
        positions -= 2
    found = [number for number in (*said, positions) if number is not None and _MIN_TOKENS <= number < _ENDLESS]
    return min(found, default=None)


def _number(settings: dict[str, Any], key: str) -> int | None:
    value = settings.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _json(source: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(_file(source, name) or b"{}")
    except ValueError as error:
        raise ModelError(
            f"{source}: {name} can't be read: {error}.", remedy="Fetch or save the model again."
        ) from error
    return found if isinstance(found, dict) else {}


def _file(source: str, name: str) -> bytes | None:
    """A file of a model, None where it has none of that name."""
    path = Path(source) / name
    if Path(source).is_dir():
        return path.read_bytes() if path.is_file() else None
    with importing("pipeline"):
        from huggingface_hub import hf_hub_download  # slow to import
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
    try:
        return Path(hf_hub_download(source, name)).read_bytes()
    except EntryNotFoundError:
        return None
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{source}: no folder, and no model that can be fetched from Hugging Face: {reason}.",
            remedy="Give the folder of the model.",
        ) from error
