"""kitoken's ids against those of `tokenizers`: byte-level BPE, WordPiece, SentencePiece-like BPE, Unigram."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.tokens.fast_tokenizer import FastTokens, probes
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.memory import resident_bytes
from tests.support.tiny import tiny_documents

TEXTS = [document.full_text for document in tiny_documents(120)]
SPECIAL = ["<unk>", "<|endoftext|>", "[PAD]"]
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
OTHERS = st.text(st.characters(max_codepoint=0xFF) | st.sampled_from("‘’‚“”„–—•…€™"), max_size=30)
WORDS = st.lists(st.sampled_from(sorted({word for text in TEXTS for word in text.split()})), max_size=12).map(" ".join)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(64)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 1)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


KINDS = {"byte-level BPE": byte_level(), "WordPiece": word_piece(), "metaspace BPE": metaspace()}


def both(tokenizer: Tokenizer) -> tuple[FastTokens, Tokenizer]:
    content = tokenizer.to_str()
    reference = Tokenizer.from_str(content)
    reference.no_padding()
    reference.no_truncation()
    reference.encode_special_tokens = True
    fast = FastTokens.of(content.encode(), lambda text: reference.encode(text, add_special_tokens=False).ids)
    assert fast is not None
    return fast, reference


PAIRS = {name: both(tokenizer) for name, tokenizer in KINDS.items()}


@pytest.mark.parametrize("kind", PAIRS)
@settings(deadline=None, max_examples=300)
@given(text=PRINTABLE | OTHERS | WORDS | st.sampled_from(SPECIAL).map(lambda special: f"a {special} b"))
def test_ids_are_those_of_the_reference(kind: str, text: str) -> None:
    fast, reference = PAIRS[kind]
    for one in (text, text.lower()):
        if fast.takes(one):
            assert fast.encode(one) == reference.encode(one, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=40) | WORDS)
def test_single_texts_and_batches_agree(kind: str, text: str) -> None:
    """Queries take the fast way, documents never do."""
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.encode(text).tolist() == tokenizer.encode_batch([text])[0].tolist()


TOKENIZERS = {name: TextTokenizer.from_bytes(one.to_str().encode(), name=name) for name, one in KINDS.items()}


def test_words_are_remembered_in_all_kinds() -> None:
    for name, (fast, _) in PAIRS.items():
        assert fast._words is not None, name
        assert fast._words.ids("plain words (2024)") == fast.encode("plain words (2024)")


def test_signs_that_reach_beyond_a_word_are_asked_for_with_the_whole_text() -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace("é é", "x")
    fast, reference = both(tokenizer)
    assert fast._words is not None
    assert fast._words.ids("a née b") is None
    assert fast._words.ids("a nèe b") is not None
    for text in ("née é é b", "nèe é b"):
        assert fast.ids(text) == reference.encode(text, add_special_tokens=False).ids


def test_with_added_tokens_of_spaces_texts_are_not_put_together() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("   ", normalized=False)])
    fast, reference = both(tokenizer)
    assert fast._words is None
    assert fast.ids("plain words") is None
    assert fast.ids("plain") == reference.encode("plain", add_special_tokens=False).ids


def test_a_vocabulary_with_tokens_of_several_words_is_asked_for_whole_texts() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["of the "] * 50 + TEXTS, trainer)
    fast, reference = both(tokenizer)
    assert fast._words is None
    assert fast.ids("one of the many") == reference.encode("one of the many", add_special_tokens=False).ids


def test_what_it_takes() -> None:
    fast, _ = PAIRS["byte-level BPE"]
    for text in ("plain words", "e-mail (2024)?", "", "naïve", "Björk’s “début” – £5…"):
        assert fast.takes(text), text
    for text in (
        "no\u00a0break",
        "soft\u00adhyphen",
        "e\u0301",
        "Dvořák",
        "tab\t",
        "line\n",
        "\x7f",
        "<|endoftext|>",
        "a < b",
        "[x]",
        "日本",
    ):
        assert not fast.takes(text), text


def test_another_result_for_one_probe_is_noticed() -> None:
    content = KINDS["byte-level BPE"].to_str().encode()
    _, reference = PAIRS["byte-level BPE"]
    texts = [text for text in probes(json.loads(content)) if text.strip()]
    for changed in (texts[3], texts[-1]):

        def differing(text: str, changed: str = changed) -> list[int]:
            ids = reference.encode(text, add_special_tokens=False).ids
            return ids[:-1] if text == changed else ids

        assert FastTokens.of(content, differing) is None


def test_a_sign_with_another_result_is_left_to_the_reference() -> None:
    content = KINDS["byte-level BPE"].to_str().encode()
    _, reference = PAIRS["byte-level BPE"]

    def differing(text: str) -> list[int]:
        ids = reference.encode(text, add_special_tokens=False).ids
        return ids[:-1] if "é" in text else ids

    fast = FastTokens.of(content, differing)
    assert fast is not None
    assert not fast.takes("née")
    assert fast.takes("naïve")
    assert fast.takes("plain words")


def test_a_tokenizer_that_it_can_not_read_is_left_to_the_reference(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "music": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer.from_file(tmp_path / "tokenizer.json").encode("music noise").tolist() == [1, 0]


def test_a_vocabulary_with_gaps_is_left_to_the_reference() -> None:
    """Neither bytes nor an unknown token: what becomes of other characters differs, which the probes find out."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    content = tokenizer.to_str().encode()
    assert FastTokens.of(content, lambda text: tokenizer.encode(text).ids) is None
    assert TextTokenizer.from_bytes(content, name="letters").encode("abz!").tolist() == [2]


def test_probes_speak_the_vocabulary() -> None:
    for tokenizer in KINDS.values():
        texts = list(probes(json.loads(tokenizer.to_str())))
        assert len(texts) > 300
        assert len(set(texts)) > 200
        assert texts == list(probes(json.loads(tokenizer.to_str())))


def test_opening_again_and_again_costs_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    KINDS["byte-level BPE"].save(str(file))
    opened: list[int] = []
    for _ in range(90):
        assert TextTokenizer.from_file(file).encode("one").size
        opened.append(resident_bytes())
    assert opened[-1] - opened[29] < 30_000 * 60  # what `tokenizers` keeps of the probes is 140 kB


@pytest.mark.parametrize("given", [{}, {"MIMALLOC_PURGE_DELAY": "10"}])
def test_the_environment_stays_as_it_was(given: dict[str, str]) -> None:
    script = "import os; before = dict(os.environ); import artifacts.fast_tokens; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, **given}, timeout=120)
