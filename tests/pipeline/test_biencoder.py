import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.sentence_models import BiEncoder, load_biencoder, load_biencoders
from lightretriever.artifacts.pipeline.stages import load_recipe_encoders
from tests.support.biencoder import SPECIAL, save_biencoder, save_static
from tests.support.recipes import write_recipe
from tests.support.tampering import edit_json
from tests.support.tiny import english_tokenizer, tiny_documents
from tests.support.wordings import raises

TEXTS = [document.full_text for document in tiny_documents(30)]


def tokenizer_of(kind: str) -> Tokenizer:
    """A tokenizer whose vocabulary splits the word "a": into a space and a letter, or bytes that no merge joins. That
    of "letters" has no words at all."""
    special = list(SPECIAL.values())
    if kind == "letters":
        pieces = [*special, "\u2581", *sorted(set("".join(TEXTS)) - {" "})]
        tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=special.index("[UNK]")))
    else:
        tokenizer = Tokenizer(models.BPE() if kind == "bytes" else models.Unigram())
    bytewise = kind == "bytes"
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False) if bytewise else pre_tokenizers.Metaspace()
    )
    tokenizer.decoder = decoders.ByteLevel() if bytewise else decoders.Metaspace()
    settings: dict[str, Any] = {"vocab_size": 340, "special_tokens": special, "show_progress": False}
    if bytewise:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(**settings, initial_alphabet=alphabet))
    elif kind == "unigram":
        tokenizer.train_from_iterator(TEXTS, trainers.UnigramTrainer(**settings, unk_token="[UNK]"))
    else:
        tokenizer.add_special_tokens(special)
    return tokenizer


def dense(size: int) -> Dense:
    torch.manual_seed(5)
    return Dense(32, size, bias=False, activation_function=torch.nn.Identity())


ODD: dict[str, dict[str, Any]] = {
    "plain": {},
    "truncated": {"truncate_dim": 16},
    "truncated behind a layer": {"behind": [dense(24), Normalize()], "truncate_dim": 8},
    "truncated to more than there is": {"truncate_dim": 64},
    "truncated, not normalised": {"behind": [], "truncate_dim": 16},
    "truncated, with a prompt": {"truncate_dim": 16, "prompts": {"query": "find "}},
    **{
        f"{kind} {prompts}": {"tokenizer": kind, "prompts": prompts}
        for kind in ("unigram", "letters", "bytes")
        for prompts in (None, {"query": "query: "}, {"query": "Instruct:"})
    },
}


@pytest.mark.parametrize("name", ODD)
def test_vectors_and_rows_of_odd_encoders_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    """A row is what the encoder makes of its token alone: cut as its vectors, and without another token before it."""
    options = dict(ODD[name])
    if "tokenizer" in options:
        options["tokenizer"] = tokenizer_of(options["tokenizer"])
    encoder = load_biencoder(str(save_biencoder(tmp_path / "bi", **options)), device="cpu", lowercase=False)
    theirs, prompt = SentenceTransformer(str(tmp_path / "bi"), device="cpu"), encoder.query_prompt("")
    expected = theirs.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).dense, expected, atol=1e-5)
    assert encoder.hidden_size == expected.shape[1]
    states = token_rows(encoder, "", tmp_path)
    assert states.shape == (encoder.tokenizer.vocab_size, encoder.hidden_size)
    *before, after = theirs.tokenizer(prompt.strip())["input_ids"]
    assert encoder.frame(prompt) == (before, [after])
    words = [
        word
        for word in encoder.tokenizer.single_words()
        if len(theirs.tokenizer(f"{prompt}{word}")["input_ids"]) == len(before) + 2
    ]
    assert len(words) > 3 or "letters" in name or prompt == "Instruct:"
    for word in words if prompt != "Instruct:" else ():  # behind which the library puts no space
        (token,) = theirs.tokenizer(f"{prompt}{word}")["input_ids"][len(before) : -1]
        vector = theirs.encode_query(word, normalize_embeddings=True)
        np.testing.assert_allclose(states[token] / np.linalg.norm(states[token]), vector, atol=1e-5)


def test_a_static_encoder_is_cut_as_its_vectors_are(tmp_path: Path) -> None:
    rows = save_static(tmp_path / "bi", english_tokenizer(), 32, truncate_dim=16)
    encoder = load_biencoder(str(tmp_path / "bi"), device="cpu")
    np.testing.assert_array_equal(encoder.token_states()(torch.arange(len(rows))), rows[:, :16])
    assert encoder.hidden_size == 16


@pytest.mark.parametrize(
    ("kind", "encode", "warned"), [("unigram", {}, True), ("unigram", {"lowercase": True}, False), (None, {}, False)]
)
def test_a_build_warns_where_queries_of_a_cased_encoder_are_lowercased_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str | None, encode: dict[str, bool], warned: bool
) -> None:
    model = save_biencoder(tmp_path / "bi", tokenizer=None if kind is None else tokenizer_of(kind))
    recipe = write_recipe(tmp_path, model, documents=5, encode=encode)
    load_recipe_encoders(read_recipe(recipe, Recipe))
    assert ("bi tells capitals from small letters" in capsys.readouterr().err) == warned


def test_the_prompt_of_queries_is_the_task_s_or_the_encoder_s_own(tmp_path: Path) -> None:
    own = load_biencoder(str(save_biencoder(tmp_path / "bi", prompts={"query": "search : "})), device="cpu")
    plain = SentenceTransformer(str(tmp_path / "bi"), device="cpu")
    np.testing.assert_allclose(own.encode_queries(["music"]).dense, plain.encode(["search : music"]), atol=1e-5)
    given = own.encode_queries(["music"], "the tool ").dense
    np.testing.assert_allclose(given, plain.encode(["the tool music"]), atol=1e-5)
    np.testing.assert_allclose(own.encode_documents(["music"]).dense, plain.encode(["music"]), atol=1e-5)
    (token,) = own.tokenizer.encode("music")
    np.testing.assert_allclose(own.token_states()(torch.tensor([token]))[0], plain.encode("search : music"), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "weightedmean", "lasttoken", "cls"])
@pytest.mark.parametrize("instruction", ["", "the tool : ", "the tool:"])
def test_a_pooling_without_the_prompt_leaves_it_out_of_tokens(tmp_path: Path, pooling: str, instruction: str) -> None:
    prompts = {"query": "search for the : "}
    path = save_biencoder(tmp_path / "bi", prompts=prompts, include_prompt=False, pooling=pooling)
    encoder = load_biencoder(str(path), device="cpu")
    (token,) = encoder.tokenizer.encode("music")
    states = encoder.token_states(instruction)(torch.tensor([token, token]))
    np.testing.assert_allclose(states[0], encoder.encode_queries(["music"], instruction).dense[0], atol=1e-5)
    np.testing.assert_allclose(states[0], states[1], atol=1e-6)  # a processor may add up the rows in different orders


def test_a_folder_without_pooling_is_refused(tmp_path: Path) -> None:
    path = save_biencoder(tmp_path / "bi", pooling=None)
    with raises(ModelError):
        load_biencoder(str(path), device="cpu")


@pytest.mark.parametrize("kind", ["module", "model"])
def test_code_of_a_model_is_not_run_nor_is_that_advised(encoder_folder: Path, tmp_path: Path, kind: str) -> None:
    path = Path(shutil.copytree(encoder_folder, tmp_path / "bi"))
    ran = tmp_path / "ran"
    for name in ("own", "custom_st"):
        (path / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')\n")
    if kind == "module":
        modules = json.loads((path / "modules.json").read_text())
        modules[0]["type"] = "custom_st.Transformer"
        (path / "modules.json").write_text(json.dumps(modules))
    else:
        own = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
        edit_json(path / "config.json", model_type="own", auto_map=own)
    with raises(ModelError, naming="bi-encoder") as caught:
        load_biencoder(str(path), device="cpu")
    assert "trust_remote_code" not in str(caught.value)
    assert not ran.exists()


def test_tokens_are_those_that_the_encoder_reads(encoder: BiEncoder) -> None:
    for text in (*TEXTS, "ÜBER naïve façade"):
        theirs = encoder.model.tokenizer(text, truncation=False)["input_ids"]
        assert theirs[1:-1] == encoder.tokenizer.encode(text).tolist()


def test_the_fingerprint_sees_how_a_text_is_read(encoder: BiEncoder, encoder_folder: Path, tmp_path: Path) -> None:
    """By the settings of each module, its tokenizer, and the prompt that stands before every text by default."""
    half = load_biencoder(str(encoder_folder), dtype="bfloat16", device="cpu")
    assert next(half.model.parameters()).dtype == torch.bfloat16
    found = {encoder.fingerprint, half.fingerprint}
    edits: list[tuple[str, dict[str, object]]] = [
        ("sentence_bert_config.json", {"max_seq_length": 63}),
        ("config_sentence_transformers.json", {"prompts": {"a": "say: "}, "default_prompt_name": "a"}),
        ("config_sentence_transformers.json", {"prompts": {"a": "say: "}, "default_prompt_name": None}),
        ("tokenizer.json", {"truncation": None}),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}),
    ]
    for number, (file, changes) in enumerate(edits):
        other = Path(shutil.copytree(encoder_folder, tmp_path / str(number)))
        assert load_biencoder(str(other), device="cpu").fingerprint == encoder.fingerprint
        edit_json(other / file, **changes)
        found.add(load_biencoder(str(other), device="cpu").fingerprint)
    assert len(found) == 7


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_a_vocabulary_is_compared_with_the_embedding(encoder_folder: Path, tmp_path: Path, kind: str) -> None:
    """Two tokens more than rows: refused where a text may have them, and no text has them where they are special."""
    for special in (False, True):
        place = tmp_path / f"{kind}-{special}"
        if kind == "static":
            tokenizer = Tokenizer.from_file(str(encoder_folder / "tokenizer.json"))
            rows = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 8)).astype(np.float32)
            tokenizer.add_tokens([AddedToken("zyx", special=special), AddedToken("zyz", special=special)])
            SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=rows)]).save(str(place))
        else:
            shutil.copytree(encoder_folder, place)
            fast = AutoTokenizer.from_pretrained(place)
            fast.add_tokens([AddedToken("zyx", special=special), AddedToken("zyz", special=special)])
            fast.save_pretrained(place)
        if not special:
            with raises(ModelError, naming="400"):
                load_biencoder(str(place), device="cpu")
            continue
        encoder = load_biencoder(str(place), device="cpu")
        assert encoder.tokenizer.vocab_size == encoder.embedded + 2
        assert encoder.one_by_one == (kind == "bert")
        assert np.isfinite(encoder.encode_documents(["music zyx player", "zyz"]).dense).all()
        rows = token_rows(encoder, "", tmp_path / "rows")
        assert not rows[-2:].any()
    if kind == "bert":  # but the model reads the padding with every text
        fast.add_special_tokens({"pad_token": "<padding>"})
        fast.save_pretrained(place)
        with raises(ModelError, naming="400"):
            load_biencoder(str(place), device="cpu")


def test_of_two_encoders_a_cosine_is_the_mean_and_tokens_are_the_first_ones(tmp_path: Path) -> None:
    """With vectors of 32 and 16 values and different tokenizers; the second has a prompt."""
    small = save_biencoder(tmp_path / "small", hidden_size=16, vocabulary=150, prompts={"query": "search : "})
    paths = [str(save_biencoder(tmp_path / "large")), str(small)]
    joint, turned = (load_biencoders(" + ".join(both), device="cpu") for both in (paths, paths[::-1]))
    first, second = each = [load_biencoder(path, device="cpu") for path in paths]
    queries, documents = TEXTS[:5], TEXTS[5:]
    found = joint.encode_queries(queries).dense @ joint.encode_documents(documents).dense.T
    expected = [one.encode_queries(queries).dense @ one.encode_documents(documents).dense.T for one in each]
    np.testing.assert_allclose(found, np.mean(expected, axis=0), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(joint.encode_documents(documents).dense, axis=1), 1, atol=1e-5)
    assert (joint.tokenizer_json, joint.longest, joint.hidden_size) == (first.tokenizer_json, first.longest, 48)
    (token,) = joint.tokenizer.encode("music")
    (row,) = joint.token_states()(torch.tensor([token])).numpy() * np.sqrt(2)
    np.testing.assert_allclose(row[:32], first.encode_queries(["music"]).dense[0], atol=1e-5)
    np.testing.assert_allclose(row[32:], second.encode_queries(["music"]).dense[0], atol=1e-5)
    texts = ["music", *(text for text in TEXTS if first.are_cut([text]) != second.are_cut([text])), "music " * 200]
    assert joint.are_cut(texts) == [False] + [True] * (len(texts) - 1)
    assert len({joint.fingerprint, turned.fingerprint, first.fingerprint}) == 3
    assert load_biencoders(paths[0], device="cpu").fingerprint == first.fingerprint
    for bad in (f"{paths[0]} + ", f" + {paths[0]}"):
        with raises(ModelError):
            load_biencoders(bad, device="cpu")
