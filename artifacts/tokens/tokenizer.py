"""The tokenizers of a bundle, one or one for each leg: used for documents offline and for queries online."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer
from tokenizers.models import BPE

from lightretriever.artifacts.dtypes import BoolArray, Int32Array, Int64Array
from lightretriever.artifacts.errors import BundleError, TokenizerError

_BATCH = 4096
_WORDS = 512  # tokens of a vocabulary that are looked at, to see how it spells words
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|\n+|(?<=[。！？])")
_MIN_SENTENCE = 4  # words of a sentence; a text in a script without spaces counts its characters
_MAX_BYTES = 128 << 20
_REMEDY = "Give a whole tokenizer.json, or fetch the model or the bundle again."
_UNKNOWN = "\U0010fffd"  # for private use, so that no vocabulary has it
INVISIBLE = "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
"""Signs that nobody sees and that part no words, as in a regular expression's class: soft hyphens, zero-width spaces,
marks of direction and of byte order; without the joiners of Persian, Indic scripts and emoji."""
_INVISIBLE = re.compile(f"[{INVISIBLE}]+")
_BEFORE = re.compile(rf"[\s{INVISIBLE}]*")
_TRIAL = f"Some words, 1234 numbers\u2026 é 漢字 ภาษา 🎉\r\n\t{'a' * 64} {'ab' * 32}"


def document_text(title: str, text: str) -> str:
    """The text that stands for a document everywhere: title and text, joined by one space."""
    return f"{title.strip()} {text.strip()}".strip()


def text_of(document: Mapping[str, Any]) -> str:
    """The `document_text` of a stored document, by its fields."""
    return document_text(document.get("title") or "", document.get("text") or "")


def sentences_of(title: str, text: str) -> list[str]:
    """The title and the sentences of a document that say something: those of 4 words or more."""
    parts = (" ".join(part.split()) for part in (title, *_SENTENCE_END.split(text)))
    return [
        part
        for part in parts
        if len(part.split()) >= _MIN_SENTENCE or (" " not in part and len(part) >= 2 * _MIN_SENTENCE)
    ]


class TextTokenizer:
    """A `tokenizers` tokenizer without special tokens, padding or truncation. Strings that look like special tokens are
    ordinary text. Text is `prepared` first. Methods that take text raise TokenizerError for one that it fails on."""

    def __init__(self, tokenizer: Tokenizer, *, content: bytes, lowercase: bool = True) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        if isinstance(tokenizer.model, BPE):
            tokenizer.model.dropout = None  # is for training: a text would have other tokens each time
        self._tokenizer = tokenizer
        self.lowercase = lowercase
        self.sha256 = hashlib.sha256(content).hexdigest()
        model = orjson.loads(content)["model"]  # names a token or, with Unigram, an id
        token = model.get("unk_token")
        self.unknown_id: int | None = model.get("unk_id") if token is None else tokenizer.token_to_id(token)
        """The id that stands for whatever the vocabulary lacks; None where all is spelt in bytes, or left out."""
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.space = self._find_space()
        """The id of a space, where a word behind one has another token than one at the start; else None. No query
        begins with it."""
        self.before_unknown = self._find_before_unknown()
        """The id of the space before a word that the vocabulary lacks, as SentencePiece has one; else None. It is left
        out with the word."""

    @classmethod
    def from_file(cls, path: Path, *, lowercase: bool = True) -> "TextTokenizer":
        """Read a `tokenizer.json`. Raises BundleError when it is missing or can't be parsed."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise BundleError(f"{path}: the tokenizer can't be read: {error.strerror}.", remedy=_REMEDY) from error
        return cls.from_bytes(content, name=str(path), lowercase=lowercase)

    @classmethod
    def from_bytes(cls, content: bytes, *, name: str, lowercase: bool = True) -> "TextTokenizer":
        """Parse the content of a `tokenizer.json`. Raises BundleError, which calls the content `name`."""
        try:
            if len(content) > _MAX_BYTES:
                raise ValueError(f"it has {len(content):,} bytes, at most {_MAX_BYTES:,} are possible")
            tokenizer = cls(Tokenizer.from_buffer(content), content=content, lowercase=lowercase)
            tokenizer._try()
        except BaseException as error:
            if not is_of_library(error):
                raise
            reason = getattr(error, "message", f"{error}").removesuffix(".")
            raise BundleError(f"{name}: not a tokenizer.json: {reason}.", remedy=_REMEDY) from error
        if not tokenizer.vocab_size:
            raise BundleError(f"{name}: the vocabulary is empty.", remedy=_REMEDY)
        return tokenizer

    def prepared(self, text: str) -> str:
        """The text that the tokenizer reads: lowercased where the bundle says so, in Unicode's form NFC, and without
        `INVISIBLE` signs."""
        lowered = self._lower(text)
        return lowered if lowered.isascii() else unicodedata.normalize("NFC", _INVISIBLE.sub("", lowered))

    def _lower(self, text: str) -> str:
        return text.lower() if self.lowercase else text

    def encode(self, text: str) -> Int32Array:
        """Token ids of a text, shape (n,), int32. A text without tokens gives shape (0,)."""
        return np.array(self._ids(self.prepared(text)), dtype=np.int32)

    def query_ids(self, text: str, *, appended: bool = False) -> list[int]:
        """Token ids of a query as Python integers, `without_unknown` ones. The first word has the ids that it has
        inside a text; a text that is `appended` to a query keeps a space that is a token by itself."""
        if self.space is None:
            ids = self._ids(self.prepared(text))
        else:
            ids = self._ids(self.prepared(f" {_begun(text)}"))
            if ids[:1] == [self.space] and not appended:  # a space that is no part of the word
                del ids[0]
        return self.without_unknown(np.array(ids, dtype=np.int32)).tolist() if self.unknown_id in ids else ids

    def query_places(self, text: str) -> list[tuple[int, int, int]]:
        """The `query_ids` of a text, each with its first character and the one after the last, without spaces
        around."""
        begun = _begun(text)
        skipped, shift = len(text) - len(begun), 0 if self.space is None else 1
        read = f"{' ' * shift}{begun}"
        spans = self._spans_of(read)
        if spans and spans[0][0] == self.space:
            del spans[0]
        if any(token == self.unknown_id for token, *_ in spans):
            spans = [span for span in spans if span[0] not in (self.unknown_id, self.before_unknown)]
        places = []
        for token, start, end in spans:
            part = read[start:end]
            first = start + len(part) - len(part.lstrip())
            last = max(first, end - len(part) + len(part.rstrip()))
            places.append((token, max(0, first - shift) + skipped, max(0, last - shift) + skipped))
        return places

    def query_ids_of(self, texts: Sequence[str]) -> tuple[Int32Array, Int64Array]:
        """The `query_ids` of q texts one after the other, int32 (n,), and how many each text has, int64 (q,)."""
        bags = [self.query_ids(text) for text in texts]
        return np.fromiter(chain.from_iterable(bags), np.int32), np.fromiter(map(len, bags), np.int64)

    def as_queries(self, texts: Iterable[str]) -> Iterator[Int32Array]:
        """The `query_ids` of every text, each int32 (n_i,); uses all cores, and memory for some thousand texts."""
        if self.space is None:
            yield from map(self.without_unknown, self.encode_all(texts))
            return
        for ids in self.encode_all(f" {_begun(text)}" for text in texts):
            yield self.without_unknown(ids[1:] if ids[:1].tolist() == [self.space] else ids)

    def bare(self) -> "TextTokenizer":
        """The same tokenizer, but the first word of a query has the ids that it has at the start of a text, as dense
        queries of the official checkpoints."""
        other = copy(self)
        other.space = None
        return other

    def without_unknown(self, ids: Int32Array) -> Int32Array:
        """Token ids (n,) without `unknown_id`, and without the space that it stands behind where that is a token."""
        if self.unknown_id is None:
            return ids
        unknown: BoolArray = ids == self.unknown_id
        unknown[:-1] |= unknown[1:] & (ids[:-1] == self.before_unknown)
        return ids[~unknown]

    def encode_batch(self, texts: Sequence[str]) -> list[Int32Array]:
        """Token ids of every text, each int32 (n_i,); uses all cores."""
        encodings = _asked(self._tokenizer.encode_batch_fast, [self.prepared(text) for text in texts])
        return [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]

    def encode_all(self, texts: Iterable[str]) -> Iterator[Int32Array]:
        """Token ids of every text, each int32 (n_i,); a corpus needs no memory but for some thousand texts."""
        rest = iter(texts)
        while part := list(islice(rest, _BATCH)):
            yield from self.encode_batch(part)

    def _spans_of(self, text: str) -> list[tuple[int, int, int]]:
        """The tokens of a text in order: id, first character and the one after the last. A span may begin with the
        space before the word."""
        prepared, starts, ends = self._with_origins(text)
        (encoding,) = _asked(self._tokenizer.encode_batch, [prepared])
        return [
            (token_id, starts[start], ends[end - 1])
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if end > start
        ]

    def _with_origins(self, text: str) -> tuple[str, Sequence[int], Sequence[int]]:
        """The text as the tokenizer reads it, and the places in the original where each of its characters begins and
        ends."""
        lowered = self._lower(text)
        if len(lowered) == len(text):
            if lowered == self.prepared(text):
                return lowered, range(len(text)), range(1, len(text) + 1)
            signs = [(sign, offset) for offset, sign in enumerate(lowered)]
        else:  # a few capitals become two characters
            signs = [(sign, offset) for offset, character in enumerate(text) for sign in self._lower(character)]
        parts, starts, ends = list[str](), list[int](), list[int]()
        for group in _joined(sign for sign in signs if not _INVISIBLE.match(sign[0])):
            composed = unicodedata.normalize("NFC", "".join(sign for sign, _ in group))
            places = [offset for _, offset in group]
            alike = len(composed) == len(group)
            starts += places if alike else [places[0]] * len(composed)
            ends += [offset + 1 for offset in (places if alike else [places[-1]] * len(composed))]
            parts.append(composed)
        return "".join(parts), starts, ends

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token id. Raises KeyError for an id that has no token."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            raise KeyError(token_id)
        return token

    def spelt(self, ids: Int32Array) -> str:
        """The texts of tokens (n,), each by itself, with spaces between them; without WordPiece's mark of a part."""
        return " ".join(text.strip().removeprefix("##") for text in self._tokenizer.decode_batch(ids[:, None].tolist()))

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, or None."""
        return self._tokenizer.token_to_id(token)

    def single_words(self) -> list[str]:
        """Words of letters that are one token each inside a text, of a sample of the vocabulary."""
        return [word for word in self._words if len(self.query_ids(word, appended=True)) == 1]

    @cached_property
    def _words(self) -> list[str]:
        """Words of letters that a sample of the vocabulary's tokens spell."""
        step = max(1, self.vocab_size // _WORDS)
        spelt = self._tokenizer.decode_batch([[token] for token in range(0, self.vocab_size, step)])
        words = dict.fromkeys(self.prepared(text.strip().removeprefix("##")) for text in spelt)
        return [word for word in words if word.isalpha()]

    @property
    def is_cased(self) -> bool:
        """True if the tokenizer itself tells capitals from small letters."""
        small, large = (self._ids_of([change(word) for word in self._words]) for change in (str.lower, str.title))
        return sum(lower != title for lower, title in zip(small, large, strict=True)) > len(small) / 2

    def _find_space(self) -> int | None:
        """Find `space`."""
        try:
            space = self._ids(" ")
            once, twice = (
                self._ids_of([pattern.format(word) for word in self._words]) for pattern in ("{0}", "{0} {0}")
            )
        except TokenizerError:
            return None
        differ = any(second[-len(first) :] != first for first, second in zip(once, twice, strict=True))
        return space[0] if len(space) == 1 and differ else None

    def _find_before_unknown(self) -> int | None:
        """Find `before_unknown`."""
        try:
            for word in self._words:
                alone, with_unknown = self._ids(word), self._ids(f"{word} {_UNKNOWN}")
                if self.unknown_id not in alone:
                    *before, mark, last = [None, None, *with_unknown]
                    return mark if last == self.unknown_id and before == [None, None, *alone] else None
        except TokenizerError:
            pass
        return None

    def _try(self) -> None:
        """Read a text of many kinds. Raises what `tokenizers` panics with; other failures are those of a text."""
        try:
            self._ids(self.prepared(_TRIAL))
        except TokenizerError as error:
            if not isinstance(error.__cause__, Exception):
                raise

    def _ids(self, prepared: str) -> list[int]:
        """Token ids. `encode` of the library would also say where each token stands, which takes time."""
        return self._ids_of([prepared])[0]

    def _ids_of(self, prepared: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in _asked(self._tokenizer.encode_batch_fast, prepared)]


def _begun(text: str) -> str:
    """The text from its first visible character on."""
    return text[_BEFORE.match(text).end() :]  # type: ignore[union-attr]  # which matches nothing, too


def _joined(signs: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """Signs with their places, each together with those behind it that may compose with it."""
    group: list[tuple[str, int]] = []
    for sign in signs:
        character = sign[0]  # which may become one with that before it: a mark, or a vowel or final of Hangul
        composes = "\u1160" <= character <= "\u11ff" or unicodedata.category(character)[0] == "M"
        if group and not composes:
            yield group
            group = []
        group.append(sign)
    if group:
        yield group


def _asked(ask: Callable[..., Any], texts: list[str]) -> Any:
    """Call a method of `tokenizers` on texts, without special tokens. Raises TokenizerError."""
    try:
        return ask(texts, add_special_tokens=False)
    except BaseException as error:
        if not is_of_library(error):
            raise
        remedy = "Change the text, or use a bundle with another tokenizer."
        raise TokenizerError(f"the tokenizer fails on this text: {error}.", remedy=remedy) from error


def is_of_library(error: BaseException) -> bool:
    """True if a library failed. `tokenizers` raises bare Exception, and PanicException, which derives from
    BaseException and can't be imported; KeyboardInterrupt and its like come from elsewhere."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
