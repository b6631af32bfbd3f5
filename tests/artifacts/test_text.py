"""The tokenizer: the tokens of texts and queries and their places; and those that come with a stranger's bundle, each
of which is bounded and tried before it reads a request."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, CorpusError, TokenizerError
from lightretriever.artifacts.tokens.idf import count_tokens, load_idf, save_idf
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.tampering import resign
from tests.support.tiny import make_tiny_bundle, tiny_documents, tiny_idf, train_tokenizer
from tests.support.wordings import raises


def opened(tokenizer: Tokenizer) -> TextTokenizer:
    return TextTokenizer.from_bytes(tokenizer.to_str().encode(), name="made/tokenizer.json")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(path, [document.full_text for document in tiny_documents()])
    return path


def test_equals_the_library_on_lowercased_text(file: Path) -> None:
    text = "Plays MUSIC from the Terminal 🎵 Übergröße"
    expected = Tokenizer.from_file(str(file)).encode(text.lower(), add_special_tokens=False).ids
    found = TextTokenizer.from_file(file).encode(text)
    assert found.dtype == np.int32
    assert found.tolist() == expected
    assert TextTokenizer.from_file(file, lowercase=False).encode(text).tolist() != expected


def test_a_query_has_the_tokens_that_it_has_inside_a_text(file: Path) -> None:
    tokenizer = TextTokenizer.from_file(file)
    for text in ("", "music player", "  music", "Übergröße 🎵", "🎵 music", "日本語", "a"):
        inside = tokenizer.encode(f"a {text.strip()}")[len(tokenizer.encode("a")) :].tolist()
        space = tokenizer.encode(" ").tolist()
        assert tokenizer.query_ids(text) == (inside[1:] if inside[:1] == space else inside)
    assert tokenizer.query_ids("music") != tokenizer.encode("music").tolist()
    several = ["music player", "", "日本語"]
    assert [ids.tolist() for ids in tokenizer.as_queries(several)] == [tokenizer.query_ids(text) for text in several]


ALIKE = {"Wi\u200bFi": "WiFi", "cafe\u0301": "café", "so\u00adft": "soft", "\u202ea \u1112\u1161\u11ab": "a 한"}


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(("text", "plain"), ALIKE.items())
def test_texts_that_look_equal_have_the_same_tokens(file: Path, text: str, plain: str, lowercase: bool) -> None:
    """A byte-level BPE spells what nobody sees in bytes, and a letter and its accent apart."""
    raw, tokenizer = Tokenizer.from_file(str(file)), TextTokenizer.from_file(file, lowercase=lowercase)
    assert raw.encode(text).ids != raw.encode(plain).ids
    assert tokenizer.encode(text).tolist() == tokenizer.encode(plain).tolist()
    assert tokenizer.query_ids(f"\u200b {text}") == tokenizer.query_ids(plain)
    assert [ids.tolist() for ids in tokenizer.as_queries([f" \ufeff{text}"])] == [tokenizer.query_ids(plain)]
    assert [token for token, *_ in tokenizer.query_places(text)] == tokenizer.query_ids(plain)


def test_places_are_those_of_the_text_as_it_stands(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"wifi": 0, "café": 1, "i\u0307x": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = opened(words)
    text = "\ufeff Wi\u200bFi İx cafe\u0301\u00ad CAFÉ"
    found = [(token, text[start:end]) for token, start, end in tokenizer.query_places(text)]
    assert found == [(0, "Wi\u200bFi"), (2, "İx"), (1, "cafe\u0301"), (1, "CAFÉ")]


UNIGRAM = models.Unigram([("a", -1.0), ("b", -1.5), ("<unk>", -9.0)], unk_id=2)
BYTES = [(f"<0x{byte:02X}>", -5.0) for byte in range(256)]


@pytest.mark.parametrize(
    ("model", "unknown", "known"),
    [
        (models.WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"), 0, [1, 2]),
        (models.WordLevel({"a": 0, "<unk>": 1, "b": 2}, unk_token="<unk>"), 1, [0, 2]),
        (models.BPE({"a": 0, "b": 1, "<unk>": 2}, [], unk_token="<unk>"), 2, [0, 1]),
        (models.BPE({"a": 0, "b": 1}, []), None, [0, 1]),
        (UNIGRAM, 2, [0, 1]),
        # What is spelt in bytes is known, so each of the emoji's four bytes is a token.
        (models.Unigram([("a", -1.0), ("b", -1.5), ("<unk>", -9.0), *BYTES], 2, True), 2, [0, 243, 162, 145, 140, 1]),
    ],
)
def test_the_unknown_token_is_left_out(model: Any, unknown: int | None, known: list[int]) -> None:
    raw = Tokenizer(model)
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = opened(raw)
    assert tokenizer.unknown_id == unknown
    assert tokenizer.query_ids("a 🎉 b") == known
    assert tokenizer.query_ids_of(["🎉 b", "a"])[0].tolist() == [*known[1:], known[0]]
    assert tokenizer.query_ids("a " + "x" * 150)[:1] == known[:1]


MARKED = [("<unk>", -9.0), ("\u2581", -2.0), ("\u2581a", -1.0), ("\u2581b", -1.5), ("b", -3.0)]
REPLACED = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (models.Unigram(MARKED, 0), {"pre_tokenizer": pre_tokenizers.Metaspace()}),
        (
            models.BPE(
                {token: place for place, token in enumerate(("<unk>", "\u2581", "\u2581a", "\u2581b", "b", "a"))},
                [("\u2581", "a"), ("\u2581", "b")],
                unk_token="<unk>",
                fuse_unk=True,
            ),
            {"normalizer": REPLACED},
        ),
    ],
)
def test_the_space_before_an_unknown_word_is_left_out_with_it(model: Any, parts: dict[str, Any]) -> None:
    raw = Tokenizer(model)
    for name, part in parts.items():
        setattr(raw, name, part)
    tokenizer = opened(raw)
    for text in ("a b", "a 🎉 b", "🎉 a 漢字 ภาษา b", "a b 🎉 🎉🎉"):
        assert tokenizer.query_ids(text) == [2, 3], text
        assert next(iter(tokenizer.as_queries([text]))).tolist() == [2, 3], text
    assert tokenizer.query_ids("a🎉b") == [2, 4]
    for text in ("🎉", "🎉 漢字"):
        assert tokenizer.query_ids(text) == []
        assert tokenizer.query_ids(text, appended=True) == []


def test_batches_equal_single_texts_and_nothing_is_padded_or_cut(file: Path) -> None:
    raw = Tokenizer.from_file(str(file))
    raw.enable_padding(length=50)
    raw.enable_truncation(max_length=3)
    raw.save(str(file.with_name("padded.json")))
    tokenizer = TextTokenizer.from_file(file.with_name("padded.json"))
    texts = ["", "music", "a longer text " * 200]
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]
    assert len(batch[0]) == 0
    assert len(batch[2]) > 200


def test_special_token_strings_are_ordinary_text(file: Path) -> None:
    tokenizer = TextTokenizer.from_file(file)
    control = tokenizer.token_id("<|endoftext|>")
    ids = tokenizer.encode("a <|endoftext|> b")
    assert control is not None
    assert control not in ids.tolist()
    assert "".join(tokenizer.token(int(token_id)) for token_id in ids).replace("Ġ", " ") == "a <|endoftext|> b"


@pytest.mark.parametrize(
    "part", [pre_tokenizers.Split(Regex(r"(a|aa)+\1c"), "isolated"), pre_tokenizers.FixedLength(0)]
)
def test_what_makes_the_library_panic_is_refused_when_it_is_opened(part: Any) -> None:
    tokenizer = Tokenizer(models.WordLevel({"w": 0, "?": 1}, unk_token="?"))
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
    content = Tokenizer(UNIGRAM).to_str().encode()
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


def ids(*tokens: int) -> npt.NDArray[np.int32]:
    return np.array(tokens, np.int32)


def test_by_hand() -> None:
    """Four documents, of which one has no token; token 0 in three, 1 in two, 2 (twice, in one document) in one, 3 in
    none."""
    found = count_tokens([ids(0, 1), ids(1, 0, 2, 2), ids(0), ids()], 4).idf()
    assert found.dtype == np.float32
    expected = [math.log(1 + (4 - df + 0.5) / (df + 0.5)) for df in (3, 2, 1)]
    np.testing.assert_allclose(found, [*expected, 1.0], rtol=1e-6)
    with raises(CorpusError):
        count_tokens([], 4)


def test_saved_and_loaded(tmp_path: Path) -> None:
    with raises(BundleError, naming="idf.npy"):
        load_idf(tmp_path / "idf.npy", 5)
    idf = count_tokens([ids(0, 1), ids(1)], 5).idf()
    save_idf(tmp_path / "idf.npy", idf)
    loaded = load_idf(tmp_path / "idf.npy", 5)
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, idf)


@pytest.mark.parametrize(
    "content",
    [
        *(np.ones(5, np.float64), np.ones((5, 1), np.float32)),
        *(np.array([1, 1, 0, 1, value], np.float32) for value in (1, np.nan, np.inf)),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: npt.NDArray[np.float32]) -> None:
    np.save(tmp_path / "idf.npy", content)
    with raises(BundleError, naming="idf.npy"):
        load_idf(tmp_path / "idf.npy", 5)
    with raises(BundleError, naming="idf.npy"):
        save_idf(tmp_path / "saved-idf.npy", content)
    assert not (tmp_path / "saved-idf.npy").exists()


def test_a_bundle_holds_the_weights_and_says_so(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", idf=True)
    assert (bundle.manifest.sparse.query_weights, bundle.manifest.sparse.idf) == ("idf_count", "idf.npy")
    assert verify_bundle(bundle.path) == []
    found = bundle.idf()
    assert found is not None
    np.testing.assert_array_equal(found, tiny_idf(bundle.tokenizer()))
    np.save(bundle.path / "idf.npy", np.ones(399, np.float32))
    resign(bundle.path)
    with raises(BundleError, naming="(399,)"):
        Bundle.open(bundle.path)
    (problem,) = verify_bundle(bundle.path)
    assert "(399,)" in str(problem)
