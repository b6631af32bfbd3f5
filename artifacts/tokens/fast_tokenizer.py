"""A several times faster way to the token ids of ordinary queries, by kitoken, held against `tokenizers`.

kitoken is young, and differs from `tokenizers` in corners: control characters, strings that look like special tokens,
some scripts. So it is asked for printable ASCII without a special token's first character, and for nothing where it
gives other ids for one of the probes, which are made from the vocabulary when a tokenizer is opened. Letters with
accents and typographic signs are probed as well, each by itself: those with other ids are left to `tokenizers`.

Most words of a query have been seen before, so a text is taken apart at its spaces, and the ids of its words are
remembered. That is the same where no token of the vocabulary goes on behind a space after something else; the probes
are asked for both ways.
"""

import ctypes
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Self

from lightretriever.artifacts.kernels import Words

__all__ = ["FastTokens", "probes"]

# kitoken brings an allocator of its own, mimalloc, which reads these when it is loaded. Without them it keeps what
# only the reading of the vocabulary needs, in huge pages: three times as much memory.
_ALLOCATOR: Final = {"MIMALLOC_ALLOW_THP": "0", "MIMALLOC_PURGE_DELAY": "0"}
# It then switches huge pages off for the whole process, mapped files among them, which are searched faster with them.
_PR_SET_THP_DISABLE: Final = 41  # from linux/prctl.h
_PR_GET_THP_DISABLE: Final = 42


@contextmanager
def _environment(ours: Mapping[str, str]) -> Iterator[None]:
    """Add variables to the environment, where it has no such ones, and take them out again."""
    added = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _huge_pages_as_before() -> Iterator[None]:
    """Let the process' setting of huge pages be after this what it was before it."""
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    before = prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0)  # 1: disabled; newer systems add 2: but for those who ask
    try:
        yield
    finally:
        if before >= 0:
            prctl(_PR_SET_THP_DISABLE, before & 1, before & 2, 0, 0)


with _environment(_ALLOCATOR), _huge_pages_as_before():
    from kitoken import Kitoken

_PROBES: Final = 400
# Latin-1 without its space and its soft hyphen, and what word processors make of quotes, hyphens and dots.
_OTHERS: Final = "".join(map(chr, (*range(0xA1, 0xAD), *range(0xAE, 0x100)))) + "‘’‚“”„–—•…€™"
_WORDS: Final = 32_768  # remembered, and as many that were not asked for lately
# A token that holds a space, as vocabularies write it, behind anything else but a space or the end of a line.
_BEYOND_A_WORD: Final = re.compile("[^ ĠĊĉč▁][ Ġ▁]")
_NOT_OURS: Final = ("padding", "truncation", "post_processor")  # switched off, as `TextTokenizer` does


class FastTokens:
    """Token ids of the texts that it `takes`. Make it with `of`, which holds it against a reference."""

    def __init__(self, tokenizer: Kitoken, specials: list[str]) -> None:
        firsts = sorted({special[0] for special in specials if special})
        self._special = re.compile("[" + re.escape("".join(firsts)) + "]") if firsts else None
        self._odd = re.compile(r"[^\x00-\x7f]")
        self.encode: Callable[[str], list[int]] = tokenizer.encode
        """The token ids of a text that it takes."""
        self._words: Words | None = None

    @classmethod
    def of(cls, content: bytes, reference: Callable[[str], list[int]]) -> Self | None:
        """For the content of a `tokenizer.json`; None where kitoken can't read it or differs from `reference`."""
        description: dict[str, Any] = {**json.loads(content), **dict.fromkeys(_NOT_OURS)}
        try:
            tokenizer = Kitoken.from_tokenizers(json.dumps(description).encode())
            fast = cls(tokenizer, [token["content"] for token in description.get("added_tokens") or []])
            # In a thread of its own: `tokenizers` keeps what it has seen by thread, even of a tokenizer that is gone.
            with ThreadPoolExecutor(max_workers=1) as thread:
                same = thread.submit(fast.agrees, reference, description).result()
                thread.submit(fast.widen, reference).result()
                thread.submit(fast.remember_words, description).result()
        except Exception:  # kitoken raises bare exceptions: for what it can't read, and for text without a token
            return None
        return fast if same else None

    def ids(self, text: str) -> list[int] | None:
        """The token ids of a text, None if it does not take it."""
        if self._words is not None and (ids := self._words.ids(text)) is not None:
            return ids
        return self.encode(text) if self.takes(text) else None

    def takes(self, text: str) -> bool:
        """Whether the ids of this text may be asked for."""
        if not (text.isascii() or self._odd.search(text) is None):
            return False
        return text.isprintable() and not (self._special and self._special.search(text))

    def agrees(self, reference: Callable[[str], list[int]], description: dict[str, Any]) -> bool:
        """Whether the ids of all probes that it takes are the reference's."""
        return all(self.encode(text) == reference(text) for text in probes(description) if self.takes(text))

    def widen(self, reference: Callable[[str], list[int]]) -> None:
        """Take the letters with accents and the signs that have the reference's ids in each of their places, too."""
        same = [sign for sign in _OTHERS if all(self.encode(text) == reference(text) for text in _around(sign))]
        self._odd = re.compile(rf"[^\x00-\x7f{''.join(same)}]")

    def remember_words(self, description: dict[str, Any]) -> None:
        """From now on, put texts together from their words, if that never makes a difference."""
        if not self.takes(" ") or any(map(_BEYOND_A_WORD.search, _vocabulary(description))):
            return
        taken = "".join(sign for sign in map(chr, range(0x21, 0x7F)) if self.takes(sign))
        if not self._joins(taken, [text for text in probes(description) if self.takes(text)]):
            return
        others = (sign for sign in _OTHERS if sign <= "\xff" and self.takes(sign))
        taken += "".join(sign for sign in others if self._joins(taken + sign, _around(sign)))
        self._words = Words(self.encode, taken.encode("latin-1"), _WORDS)

    def _joins(self, taken: str, texts: Sequence[str]) -> bool:
        """Whether texts of these characters have the ids of their words."""
        words = Words(self.encode, taken.encode("latin-1"), len(texts))
        return all(words.ids(text) in (None, self.encode(text)) for text in texts)


def _vocabulary(description: Mapping[str, Any]) -> list[str]:
    vocabulary = (description.get("model") or {}).get("vocab") or {}
    return [entry[0] for entry in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)


def _around(sign: str) -> tuple[str, ...]:
    """Texts with a character by itself, within words and numbers, at their beginnings and ends, and next to itself."""
    return sign, f"a{sign}b {sign}s the{sign} {sign} 1{sign}2 {sign}{sign}, x.{sign} {sign}3 Q{sign}"


def probes(description: dict[str, Any]) -> Iterator[str]:
    """Texts made of the vocabulary's own printable ASCII words, in both cases, and some that tokenizers disagree on."""
    yield from (
        "",
        " ",
        "a",
        "don't  stop 2024!",
        "x1y22z333",
        "(a+b)*c = d/e",
        "  two  spaces ",
        "WiFi iPhone's e-mail",
    )
    words = [re.sub(r"^(?:Ġ|▁|##)", "", entry) for entry in _vocabulary(description)]
    usable = sorted({word for word in words if word and word.isascii() and word.isprintable()})
    generator = random.Random(0)
    for number in range(_PROBES if usable else 0):
        text = generator.choice((" ", " ", "", "-")).join(generator.choices(usable, k=1 + number % 8))
        yield text if number % 2 else text.lower()
