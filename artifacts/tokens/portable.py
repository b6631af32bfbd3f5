"""A bundle's tokenizer as one `tokenizer.json` that reads queries by itself, for libraries without this code.

`TextTokenizer.query_ids` prepares a text and leaves tokens out. Here normalizers prepare it, and what is to be left out
becomes tokens whose rows are zero, which don't change the direction of a mean.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import orjson
from tokenizers import Tokenizer

from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.tokens.tokenizer import INVISIBLE, TextTokenizer

_FINAL_SIGMA: Final = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"
_SPACES: Final = "".join(chr(code) for code in range(0x110000) if chr(code).isspace())
# For private use, so that no vocabulary has them.
_START: Final = "\U0010fffc"
_UNKNOWN: Final = "\U0010fffd"
_TRIALS: Final = (
    *("", " ", "two words", " a space before", "two  spaces", "1984 numbers 12", "Capitals ΟΔΥΣΣΕΥΣ İ ẞ", "é naïve"),
    *("漢字 かな 한글", "кириллица", "ภาษาไทย", "हिन्दी", "עברית", "🎉 🎊", "a🎉b \U0010fffe c", "\t a\n\nb\r\n"),
    *("e\u0301 Wi\u200bFi \u00adx", "\ufeff \u2060a"),
    *("[UNK] [CLS] <s> </s> <unk> <|endoftext|> <pad>", "x" * 300, '(a) "b" -c- d/e f\'s', "\x1c a \x1f\u3000b"),
)
_CHUNK: Final = 32


@dataclass(frozen=True)
class PortableTokenizer:
    """A `tokenizer` whose ids are those of the bundle's. Ids in `nothing` stand for nothing; a table for it has a
    number of `rows`."""

    tokenizer: Tokenizer
    nothing: frozenset[int]
    rows: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer, content: bytes) -> "PortableTokenizer":
        """Make one of a bundle's tokenizer and of the `content` of its file.

        Raises BundleError for a tokenizer that can't be made one: on texts of many kinds and on its own vocabulary, the
        tokens would be others.
        """
        spec: dict[str, Any] = orjson.loads(content)
        kept = _without_special(spec, lowercase=tokenizer.lowercase)
        added = _added_pieces(spec, tokenizer)
        spec |= {"truncation": None, "padding": None, "post_processor": None}
        spec["model"].pop("dropout", None)
        lower = (_replace(_FINAL_SIGMA, "ς"), {"type": "Lowercase"}) if tokenizer.lowercase else ()
        _normalise_first(spec, _replace(f"[{INVISIBLE}]+", ""), *lower, {"type": "NFC"})
        built = Tokenizer.from_str(orjson.dumps(spec).decode())
        ids = {built.token_to_id(piece) for piece in added}
        if tokenizer.unknown_id is not None:
            ids.add(tokenizer.unknown_id)
        nothing = frozenset(id_ for id_ in ids if id_ is not None)
        rows = max(tokenizer.vocab_size, *(built.get_vocab().values())) + 1
        portable = cls(built, nothing, rows)
        moved = [token["content"] for token in kept if built.token_to_id(token["content"]) != token["id"]]
        if moved:
            raise _refused(f"the token {moved[0]!r} would have another id")
        portable._compare(tokenizer, {token["id"] for token in kept})
        return portable

    def query_ids(self, text: str) -> list[int]:
        """The tokens of a query that stand for something."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [token for token in ids if token not in self.nothing]

    def _compare(self, tokenizer: TextTokenizer, added: set[int]) -> None:
        tokens = np.array([token for token in range(tokenizer.vocab_size) if token not in added], np.int32)
        texts = (tokenizer.spelt(tokens[start : start + _CHUNK]) for start in range(0, len(tokens), _CHUNK))
        for text in (*_TRIALS, *texts):
            expected, ids = tokenizer.query_ids(text), self.query_ids(text)
            if expected != ids:
                raise _refused(f"the text {text[:80]!r} would have the tokens {ids[:10]}, not {expected[:10]}")


def _without_special(spec: dict[str, Any], *, lowercase: bool) -> list[dict[str, Any]]:
    """Take special tokens away, so that their spelling is ordinary text, and return the added tokens that are left.

    Their ids stand in the vocabulary, where it has ids: the library numbers the others anew."""
    kept = [
        token
        for token in spec.get("added_tokens") or ()
        if not token["special"] and not (lowercase and token["content"] != token["content"].lower())
    ]
    spec["added_tokens"] = kept
    if isinstance(spec["model"]["vocab"], dict):
        for token in kept:
            spec["model"]["vocab"].setdefault(token["content"], token["id"])
    return kept


def _added_pieces(spec: dict[str, Any], tokenizer: TextTokenizer) -> tuple[str, ...]:
    """Add the tokens, and return their spellings, that take the place of others which are left out by where they stand:
    of a space at the start of a query, and of one before an unknown word."""
    model, kind = spec["model"], spec["model"].get("type")
    if tokenizer.space is not None:
        if kind != "BPE" or spec.get("pre_tokenizer") is None:
            raise _refused(f"a model {kind} with a token of its own for the space before a word")
        # The last of all merges: where the space merges with the word, the mark stays by itself.
        space = tokenizer.token(tokenizer.space)
        model["vocab"] |= {_START: tokenizer.vocab_size, _START + space: tokenizer.vocab_size + 1}
        pairs = bool(model["merges"]) and isinstance(model["merges"][0], list)
        model["merges"].append([_START, space] if pairs else f"{_START} {space}")
        # One space before the text, and none before an added token's own spelling, which is normalised, too.
        for token in spec["added_tokens"]:
            if token["normalized"]:
                token["content"] = _UNKNOWN + token["content"]
                model["vocab"][token["content"]] = token["id"]
        _normalise_first(
            spec,
            {"type": "Prepend", "prepend": _START},
            _replace(rf"\A{_START}{_UNKNOWN}", ""),
            _replace(rf"\A{_START}\K[{_classes(_SPACES)}]+", ""),
            _replace(rf"\A{_START}", " "),
        )
        mark = {"type": "Metaspace", "replacement": _START, "prepend_scheme": "first", "split": False}
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [spec["pre_tokenizer"], mark]}
        return _START, _START + space
    if tokenizer.before_unknown is not None:
        if kind != "Unigram":
            raise _refused(f"a model {kind} with a token for the space before a word that it lacks")
        space = tokenizer.token(tokenizer.before_unknown)
        alphabet = _classes({character for piece, _ in model["vocab"] for character in piece} | {" "})
        pieces = (space + _UNKNOWN, space + model["vocab"][model["unk_id"]][0])  # the second is spelt in the text
        model["vocab"] += [[piece, 0.0] for piece in pieces]
        parts = [spec["normalizer"]] if spec.get("normalizer") else []
        spec["normalizer"] = {"type": "Sequence", "normalizers": [*parts, _replace(f"[^{alphabet}]", _UNKNOWN)]}
        return pieces
    return ()


def _normalise_first(spec: dict[str, Any], *parts: dict[str, Any]) -> None:
    steps = [spec["normalizer"]] if spec.get("normalizer") else []
    spec["normalizer"] = {"type": "Sequence", "normalizers": [*parts, *steps]}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _classes(characters: Iterable[str]) -> str:
    """The inside of a regular expression's class of these characters, as ranges."""
    codes = sorted(set(map(ord, characters)))
    runs = [[code for _, code in run] for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0])]
    return "".join(rf"\x{{{run[0]:x}}}-\x{{{run[-1]:x}}}" for run in runs)


def _refused(reason: str) -> BundleError:
    return BundleError(
        f"The bundle's tokenizer can't be exported: {reason}.",
        remedy="Take the vectors from the service, by `POST /encode`.",
    )
