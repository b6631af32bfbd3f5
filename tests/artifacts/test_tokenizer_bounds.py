"""Tokenizers that come with a stranger's bundle: each is bounded and tried before it reads a request."""

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.errors import BundleError, TokenizerError
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.wordings import raises


def words(count: int = 3) -> Tokenizer:
    return Tokenizer(models.WordLevel({f"w{number}": number for number in range(count)} | {"?": count}, unk_token="?"))


def opened(tokenizer: Tokenizer) -> TextTokenizer:
    return TextTokenizer.from_bytes(tokenizer.to_str().encode(), name="made/tokenizer.json")


@pytest.mark.parametrize(
    "part", [pre_tokenizers.Split(Regex(r"(a|aa)+\1c"), "isolated"), pre_tokenizers.FixedLength(0)]
)
def test_what_makes_the_library_panic_is_refused_when_it_is_opened(part: Any) -> None:
    tokenizer = words()
    tokenizer.pre_tokenizer = part
    with raises(BundleError, naming="tokenizer.json"):
        opened(tokenizer)


@pytest.mark.parametrize("unknown", ["?", "none"])
def test_a_text_that_the_tokenizer_fails_on_is_an_error_of_that_text(unknown: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"w0": 0, "w1": 1, "?": 2}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(z|zz)+\1c"), "isolated")
    reader = opened(tokenizer)
    assert reader.encode("w1").tolist() == [1]
    several = (lambda text: reader.encode_batch([text]), lambda text: reader.query_ids_of([text]))
    for read in (reader.encode, reader.query_ids, reader.query_places, *several):
        with raises(TokenizerError):
            read("z" * 64 if unknown == "?" else "x")


def test_too_large_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = words().to_str().encode()
    monkeypatch.setattr("lightretriever.artifacts.tokens.tokenizer._MAX_BYTES", len(content) - 1)
    with raises(BundleError, naming="tokenizer.json"):
        TextTokenizer.from_bytes(content, name="made")


def test_a_text_has_the_same_tokens_each_time() -> None:
    merges = [("a", "b"), ("ab", "ab")]
    tokenizer = opened(Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "abab": 3}, merges, dropout=0.9)))
    assert {tuple(tokenizer.query_ids("abab")) for _ in range(50)} == {(3,)}


def test_what_is_no_tokenizer_is_refused() -> None:
    """Of the last one the library panics, and Rust's panic is no Exception: it would pass every handler."""
    normalizer = '{"type": "Precompiled", "precompiled_charsmap": "AAAA"}'
    model = '{"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0}}'
    empty = Tokenizer(models.BPE()).to_str().encode()
    panics = f'{{"added_tokens": [], "normalizer": {normalizer}, "model": {model}}}'.encode()
    for content in (b"", b"[]", b"{}", b'{"model": 1}', b'{"model": {"vocab": 1}}', b"\xff" * 100, panics, empty):
        with raises(BundleError, naming="tokenizer.json"):
            TextTokenizer.from_bytes(content, name="made")
