"""A bundle's query encoder as a model of sentence-transformers: by its tokenizer, tokens and vectors of the service."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError, ModelError
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from lightretriever.artifacts.tokens.portable import PortableTokenizer
from lightretriever.artifacts.tokens.table import TableDtype
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.search.encoder import QueryEncoder
from tests.support import recipes
from tests.support.biencoder import save_biencoder
from tests.support.commands import run, summary_of
from tests.support.tampering import edit_json
from tests.support.tiny import english_tokenizer, make_tiny_bundle, tiny_documents
from tests.support.wordings import raises

QUERIES = (
    *("", "   ", "music player", "  Music\t PLAYER ", "1984", "12 music", "🎉", "🎉 music", "music 🎉🎊 player🎉"),
    *("ΟΔΥΣΣΕΥΣ ΣΑΣ Α.Σ", "İstanbul ẞ", "Съешь ЕЩЁ", "日本語の文書", "ภาษาไทย", "naïve e\u0301", "<s> a </s> <unk>"),
    *("x" * 400, "music " * 3000, "\x1c\u3000music", "a\n\nb", "   a   b  c", "<|endoftext|> <|im_end|>"),
    *('(a) "b" -c- d/e', "これは検索エンジン", "Übergröße, façade", "[UNK] [CLS]", "music player terminal 12 " * 40),
)
TEXTS = [document.full_text for document in tiny_documents()]


def export(bundle: Path, folder: Path, *options: object) -> dict[str, Any]:
    return summary_of("export", bundle, folder, "--to", "sentence-transformers", *options)


def service_vectors(bundle: Bundle, task: str, texts: list[str]) -> np.ndarray[Any, Any]:
    return QueryEncoder(bundle.tokenizer(), {task: bundle.table(task)}).vectors(texts, task)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "encoder"
    return save_biencoder(folder, prompts={"query": "find ", "document": "text "})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A bundle that the pipeline made, which serves the first 24 of 32 values."""
    folder = tmp_path_factory.mktemp("export")
    sections: dict[str, Any] = {"distil": {"epochs": 1, "batch_size": 16, "held_out": 4}}
    sections["index"] = {"dimension": 24}
    recipe = recipes.write_recipe(folder, encoder, documents=40, **sections)
    run("build", recipe)
    return folder / "bundle"


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("words", [True, False])
def test_queries_have_the_vectors_of_the_service(tmp_path: Path, dtype: TableDtype, words: bool) -> None:
    own = english_tokenizer() if words else None
    bundle = make_tiny_bundle(tmp_path / "bundle", table_dtype=dtype, own_tokenizer=own)
    summary = export(bundle.path, tmp_path / "model", "--task", "fact")
    assert (summary["task"], summary["dimension"], summary["encoder"], summary["warnings"]) == ("fact", 16, None, [])
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    expected = service_vectors(bundle, "fact", [*QUERIES])
    assert np.linalg.norm(expected, axis=1).max() == pytest.approx(1)
    np.testing.assert_allclose(model.encode_query([*QUERIES]), expected, atol=1e-5, rtol=0)
    for text, vector in zip(QUERIES, expected, strict=True):
        np.testing.assert_allclose(model.encode_query(text), vector, atol=1e-5, rtol=0)
    np.testing.assert_array_equal(model.encode([*QUERIES]), model.encode_query([*QUERIES]))


def test_without_a_known_token_a_query_is_zero_and_without_an_encoder_a_document_is_an_error(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle", own_tokenizer=english_tokenizer())
    export(bundle.path, tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    vectors = model.encode_query(["", "unheard-of 🎉", "music"])
    assert np.linalg.norm(vectors, axis=1).tolist() == pytest.approx([0, 0, 1])
    with raises(ValueError, naming="document"):
        model.encode_document("music")


def test_documents_have_the_vectors_of_the_bundle(built: Path, encoder: Path, tmp_path: Path) -> None:
    summary = export(built, tmp_path / "model", "--model", encoder)
    assert (summary["encoder"], summary["dimension"], summary["warnings"]) == (str(encoder), 24, [])
    model, bundle = SentenceTransformer(str(tmp_path / "model"), device="cpu"), Bundle.open(built)
    whole = SentenceTransformer(str(encoder), device="cpu").encode_document(TEXTS)[:, :24]
    documents = model.encode_document(TEXTS)
    np.testing.assert_allclose(documents, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)
    expected = service_vectors(bundle, bundle.manifest.default_task, [*QUERIES])
    np.testing.assert_allclose(model.encode_query([*QUERIES]), expected, atol=1e-5, rtol=0)
    assert bundle.manifest.dimension < bundle.manifest.model.hidden_size


@pytest.mark.parametrize(
    "prompts", [{"document": "text "}, {"passage": "text "}, {"document": "text ", "passage": "p "}]
)
@pytest.mark.parametrize("default", [None, "other"])
def test_documents_are_read_behind_the_encoder_s_prompt(
    tmp_path: Path, prompts: dict[str, str], default: str | None
) -> None:
    """One named `document`. sentence-transformers puts no other before documents, and neither does a build."""
    folder = save_biencoder(tmp_path / "encoder")
    settings = {"prompts": {"other": "other ", **prompts}, "default_prompt_name": default}
    edit_json(folder / "config_sentence_transformers.json", **settings)
    own = load_biencoder(str(folder), device="cpu")
    bundle = make_tiny_bundle(tmp_path / "bundle", dimension=own.hidden_size)
    export(bundle.path, tmp_path / "model", "--model", folder)
    documents = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode_document(TEXTS)
    np.testing.assert_allclose(documents, own.encode_documents(TEXTS).dense, atol=1e-6)
    plain = own.model.encode([f"{prompts.get('document', '')}{text}" for text in TEXTS], prompt="")
    np.testing.assert_allclose(documents, plain, atol=1e-6)


def test_bad_input_is_refused(built: Path, encoder: Path, tmp_path: Path) -> None:
    small = save_biencoder(tmp_path / "small", hidden_size=16)
    with raises(ModelError, naming="16"):
        export(built, tmp_path / "model", "--model", small)
    with raises(ModelError, naming="sentence-transformers"):
        export(built, tmp_path / "model", "--model", f"{encoder} + {encoder}")
    with raises(BundleError, naming="web"):
        export(built, tmp_path / "model", "--task", "web")
    sparse = make_tiny_bundle(tmp_path / "sparse", dense=False)
    with raises(BundleError, naming="index.dense") as error:
        export(sparse.path, tmp_path / "model")
    assert error.value.remedy == "Build one with index.dense: true."
    assert not (tmp_path / "model").exists()


SPECIAL = ["<s>", "</s>", "<unk>"]


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
