"""A tokenizer that reads queries by itself has the tokens that the service reads, and others that stand for nothing."""

from collections.abc import Callable
from random import Random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.tokens.portable import PortableTokenizer
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.tiny import english_tokenizer, tiny_documents
from tests.support.wordings import raises

TEXTS = [document.full_text for document in tiny_documents()]
SPECIAL = ["<s>", "</s>", "<unk>"]
QUERIES = (
    *("", "   ", "music player", "  Music\t PLAYER ", "1984", "12 music", "🎉", "🎉 music", "music 🎉🎊 player🎉"),
    *("ΟΔΥΣΣΕΥΣ ΣΑΣ Α.Σ", "İstanbul ẞ", "Съешь ЕЩЁ", "日本語の文書", "ภาษาไทย", "naïve e\u0301", "<s> a </s> <unk>"),
    *("x" * 400, "music " * 3000, "\x1c\u3000music", "a\n\nb", "   a   b  c", "<|endoftext|> <|im_end|>"),
    '(a) "b" -c- d/e',
)


def byte_level(*, digits: bool = False, spaces: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text.lower() for text in TEXTS], trainer)
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.add_tokens([AddedToken("  "), AddedToken("   ")] if spaces else ["<tool>"])
    return tokenizer


def unigram() -> Tokenizer:
    characters = sorted(set("▁".join(TEXTS).lower().replace(" ", "▁")) | set("<>/") - set("🎵"))
    words = [f"▁{word}" for word in ("music", "player", "terminal", "search", "engine")]
    pieces = [(piece, 0.0) for piece in SPECIAL]
    pieces += [(piece, -9.0) for piece in characters if piece.isprintable()] + [(word, -5.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "word pieces": english_tokenizer,
    "bytes": byte_level,
    "bytes and digits": lambda: byte_level(digits=True),
    "bytes and spaces": lambda: byte_level(spaces=True),
    "unigram": unigram,
}


def both(made: Tokenizer, *, lowercase: bool = True) -> tuple[TextTokenizer, PortableTokenizer]:
    content = made.to_str().encode()
    tokenizer = TextTokenizer.from_bytes(content, name="tokenizer.json", lowercase=lowercase)
    return tokenizer, PortableTokenizer.of(tokenizer, content)


def random_queries(count: int) -> list[str]:
    random = Random(5)
    scripts = [range(0x20, 0x7F), range(0xA0, 0x500), range(0x3040, 0x30FF), range(0x1F300, 0x1F600), [0x20], [0x61]]
    return [
        "".join(chr(random.choice(random.choice(scripts))) for _ in range(random.randrange(1, 12)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_tokens_of_a_query(kind: str, lowercase: bool) -> None:
    tokenizer, portable = both(KINDS[kind](), lowercase=lowercase)
    for text in (*QUERIES, *TEXTS, *random_queries(3000)):
        assert portable.query_ids(text) == tokenizer.query_ids(text), text
    assert all(0 <= token < portable.rows for token in portable.nothing)
    assert not portable.nothing & set(range(tokenizer.vocab_size)) - {tokenizer.unknown_id}


def test_the_kinds_leave_tokens_out_by_where_they_stand() -> None:
    """Else the tests above would say little."""
    assert both(byte_level())[0].space is not None
    assert both(unigram())[0].before_unknown is not None
    tokenizer, portable = both(byte_level(digits=True))
    assert tokenizer.query_ids("1 1") == [tokenizer.token_id("1"), tokenizer.space, tokenizer.token_id("1")]
    assert portable.tokenizer.encode("1").ids[0] in portable.nothing


def test_one_that_would_read_other_tokens_is_refused() -> None:
    lines = byte_level()
    lines.add_tokens([AddedToken("\n\n", normalized=False)])
    with raises(BundleError, naming="305"):
        both(lines)
    pieces = models.Unigram([("<unk>", 0.0), ("a", -1.0), (" ", -1.0), (" a", -0.5)], unk_id=0)
    with raises(BundleError) as error:
        both(Tokenizer(pieces))
    assert error.value.remedy == "Take the vectors from the service, by `POST /encode`."
