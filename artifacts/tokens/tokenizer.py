"""The one tokenizer of a bundle: used for documents offline and for queries online."""

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.tokens.fast_tokenizer import FastTokens
from tokenizers import Encoding, Tokenizer

__all__ = ["TextTokenizer", "document_text"]


def document_text(title: str, text: str) -> str:
    """The text that stands for a document everywhere: title and text, joined by one space."""
    return f"{title.strip()} {text.strip()}".strip()


class TextTokenizer:
    """A `tokenizers` tokenizer without special tokens, padding or truncation.

    Strings that look like special tokens (`<|endoftext|>` in a query) are ordinary text, so nobody can
    put a control token into a query or a document. Text is lowercased first where the bundle says so. Single texts of
    ordinary characters take a faster way to the same ids, see `artifacts.tokens.fast_tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer, *, content: bytes, lowercase: bool = True) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._fast = FastTokens.of(content, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
        self.lowercase = lowercase
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def from_file(cls, path: Path, *, lowercase: bool = True) -> "TextTokenizer":
        """Read a `tokenizer.json`. Raises BundleError when it is missing or can't be parsed."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise BundleError(f"{path}: the tokenizer can't be read: {error.strerror}.") from error
        return cls.from_bytes(content, name=str(path), lowercase=lowercase)

    @classmethod
    def from_bytes(cls, content: bytes, *, name: str, lowercase: bool = True) -> "TextTokenizer":
        """Parse the content of a `tokenizer.json`; `name` says in a BundleError what it was."""
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises bare Exception on bad content
            raise BundleError(f"{name}: not a tokenizer.json: {error}.") from error
        return cls(tokenizer, content=content, lowercase=lowercase)

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids of a text, shape (n,), int32. A text without tokens gives shape (0,)."""
        return np.array(self.token_ids(text), dtype=np.int32)

    def token_ids(self, text: str) -> list[int]:
        """Token ids of a text as Python's own numbers."""
        prepared = text.lower() if self.lowercase else text
        if self._fast is not None and (known := self._fast.ids(prepared)) is not None:
            return known
        ids: list[int] = self._tokenizer.encode(prepared, add_special_tokens=False).ids
        return ids

    def token_ids_of(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Token ids of q texts one after the other, shape (n,), int32, and how many each has, shape (q,), int64."""
        ids, lengths = array("i"), []
        for text in texts:
            found = self.token_ids(text)
            ids.fromlist(found)  # a list of the lists would keep Python's garbage collector busy
            lengths.append(len(found))
        return np.array(ids, dtype=np.int32), np.array(lengths, dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of every text, each of shape (n_i,), int32; uses all cores."""
        prepared = [self._prepare(text) for text in texts]
        return [_ids(encoding) for encoding in self._tokenizer.encode_batch_fast(prepared, add_special_tokens=False)]

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """The tokens of a text in order: id, and the characters from which to which it stands there, perhaps with the
        space before it."""
        prepared = self._prepare(text)
        origin: Sequence[int] = range(len(text))
        if len(prepared) != len(text):  # a few capitals become two characters
            prepared = "".join(map(str.lower, text))
            origin = [place for place, character in enumerate(text) for _ in character.lower()]
        encoding = self._tokenizer.encode(prepared, add_special_tokens=False)
        found = zip(encoding.ids, encoding.offsets, strict=True)
        return [(token_id, origin[start], origin[end - 1] + 1) for token_id, (start, end) in found if end > start]

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token id. Raises KeyError for an id that has no token."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            raise KeyError(token_id)
        return token

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, or None."""
        return self._tokenizer.token_to_id(token)

    def _prepare(self, text: str) -> str:
        return text.lower() if self.lowercase else text


def _ids(encoding: Encoding) -> npt.NDArray[np.int32]:
    return np.asarray(encoding.ids, dtype=np.int32)
