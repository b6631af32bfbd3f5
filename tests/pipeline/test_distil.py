import json
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.errors import LightRetrieverError, RecipeError, ResumeError
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.encoder import Encoded
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.fit import (
    Agreement,
    DistilTexts,
    FitTexts,
    agreement,
    agreement_line,
    corpus_sentences,
    distinct_rows,
    fit_table,
    query_texts,
    table_queries,
    teacher_vectors,
)
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, EncodeRecipe, Recipe, read_recipe
from lightretriever.artifacts.pipeline.rows import Rows
from lightretriever.artifacts.pipeline.sentence_models import BiEncoder, load_biencoders
from lightretriever.artifacts.pipeline.stages import run_encode
from lightretriever.artifacts.signals import Stopped
from lightretriever.artifacts.tokens.idf import count_tokens
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import warm
from tests.support import recipes
from tests.support.biencoder import save_biencoder
from tests.support.commands import only, run
from tests.support.judged import write_queries
from tests.support.models import write_corpus
from tests.support.recipes import change, encoded_rows, files
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

Vectors = npt.NDArray[np.float32]
COUNT = 120
CPU = torch.device("cpu")
WORDS = ("music player", "text editor", "scientific papers", "network traffic", "chess games", "large images")
PLACES = ("from the terminal", "over the network", "in the background", "with few dependencies", "on every machine")
QUERIES = [f"a tool that reads {word} {place}" for word in WORDS for place in PLACES]


@pytest.fixture(scope="module")
def vectors_of_documents(encoder: BiEncoder) -> Vectors:
    """Those of the corpus, (COUNT, H)."""
    return encoder.encode_documents([document.full_text for document in tiny_documents(COUNT)]).dense


@pytest.fixture
def vectors(vectors_of_documents: Vectors) -> Vectors:
    """The same, to be changed."""
    return vectors_of_documents.copy()


def write_recipe(tmp_path: Path, folder: Path) -> Path:
    fit = {"epochs": 2, "batch_size": 32, "learning_rate": 0.02, "held_out": 40}
    sections: dict[str, Any] = {"encode": {"shard_size": 50}, "index": {"table_dtype": "float32"}}
    sections["distil"] = {"queries": [str(write_queries(tmp_path, QUERIES))], **fit}
    return recipes.write_recipe(tmp_path, folder, documents=COUNT, tasks={"search": ""}, **sections)


@pytest.fixture
def recipe(tmp_path: Path, encoder_folder: Path) -> Path:
    return write_recipe(tmp_path, encoder_folder)


def test_the_bundle_says_what_it_is(recipe: Path, tmp_path: Path, encoder: BiEncoder) -> None:
    change(recipe, {"distil.epochs": 1, "index.vocabulary": "tokens"})
    run("build", recipe)
    bundle = Bundle.open(tmp_path / "bundle")
    manifest = bundle.manifest
    assert (manifest.model.name, manifest.model.trained) == ("tiny-bi", True)
    assert (manifest.sparse.impacts, manifest.sparse.query_weights, manifest.sparse.top_k) == ("bm25", "count", None)
    assert (manifest.documents, manifest.dimension) == (COUNT, encoder.hidden_size)
    texts = [document.full_text for document in tiny_documents(COUNT)]
    tokens = encoder.tokenizer.encode_batch(texts)
    assert manifest.corpus.cut == sum(len(ids) > 62 for ids in tokens) > 0  # 64 with [CLS] and [SEP]


def test_given_vectors_are_used_as_they_are(recipe: Path, tmp_path: Path, vectors: Vectors) -> None:
    vectors[7] = vectors[8]  # what only the file can say
    np.save(tmp_path / "vectors.npy", 3 * vectors.astype(np.float16))
    change(recipe, {"distil.vectors": str(tmp_path / "vectors.npy")})
    run(*only("encode"), recipe)
    dense = encoded_rows(tmp_path / "work" / "encode").dense
    np.testing.assert_allclose(dense, vectors, atol=2e-3)
    np.testing.assert_array_equal(dense[7], dense[8])
    vectors[7] = vectors[9]
    np.save(tmp_path / "vectors.npy", vectors)
    with raises(ResumeError, naming="documents are not there"):
        run(*only("index"), recipe)
    run(*only("encode"), recipe)
    dense = encoded_rows(tmp_path / "work" / "encode").dense
    np.testing.assert_array_equal(dense[7], dense[9])


@pytest.mark.parametrize(
    "write",
    [
        lambda file, v: np.save(file, v[1:]),
        lambda file, v: np.save(file, v.astype(float)),
        lambda file, v: np.save(file, v[::-1]),
        lambda file, v: np.save(file, np.concatenate([v[:20], v[-1:], v[20:-1]])),
        lambda file, v: np.save(file, np.concatenate([v[:-10], -v[-10:]])),
        lambda file, v: np.save(file, v * (np.arange(COUNT) != 1)[:, None]),
        lambda file, v: file.write_bytes(pickle.dumps(v)),
        lambda file, v: file.write_bytes(b"\x93NUMPY\x01\x00"),
        lambda file, v: file.mkdir(),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    recipe: Path, tmp_path: Path, vectors: Vectors, write: Callable[[Path, Vectors], object]
) -> None:
    write(tmp_path / "vectors.npy", vectors)
    change(recipe, {"distil.vectors": str(tmp_path / "vectors.npy")})
    with raises(LightRetrieverError, naming="vectors") as raised:
        run(*only("encode"), recipe)
    assert "allow_pickle" not in str(raised.value)


def test_a_few_changed_documents_are_counted_and_no_obstacle(recipe: Path, tmp_path: Path, vectors: Vectors) -> None:
    vectors[[0, COUNT - 1]] *= -1
    np.save(tmp_path / "vectors.npy", vectors)
    change(recipe, {"distil.vectors": str(tmp_path / "vectors.npy")})
    said = run(*only("encode"), recipe, "--json")
    assert "warning: distil.vectors: 2 of " in said
    assert 'The first of them is row 0, document "music", with a cosine of -1.00' in said


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, encoder_folder: Path) -> Path:
    """The recipe of a work directory that has its table."""
    recipe = write_recipe(tmp_path_factory.mktemp("finished"), encoder_folder)
    change(recipe, {"distil.epochs": 1})
    run("build", "--until", "table", recipe)
    return recipe


@pytest.mark.parametrize(
    ("key", "value"),
    [("distil.seed", 1), ("distil.queries", []), ("distil.sentences", 20), ("distil.sentences", False)],
)
def test_other_settings_of_the_fit_encode_nothing_again(
    finished: Path, tmp_path: Path, key: str, value: object
) -> None:
    recipe = change(recipes.copied(finished.parent, tmp_path), {key: value})
    with raises(ResumeError, naming="--from table"):
        run(*only("index"), recipe)
    encoded = {file: file.stat().st_mtime_ns for file in (tmp_path / "work" / "encode").glob("run-*/*")}
    table = tmp_path / "work" / "tables" / "search" / "table.npy"
    before = table.read_bytes()
    run("build", "--until", "table", recipe)
    assert table.read_bytes() != before
    assert encoded.items() <= {file: file.stat().st_mtime_ns for file in encoded}.items()
    run(*only("index"), recipe)


def bags_of(*texts: list[int]) -> Rows:
    return Rows.of([np.array(ids, dtype=np.int32) for ids in texts])


def test_a_query_is_the_normalised_mean_of_its_rows() -> None:
    table = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    queries = table_queries(table, bags_of([0, 1, 1], [2]))
    expected = [[1 / np.hypot(1, 4), 4 / np.hypot(1, 4)], [2**-0.5, 2**-0.5]]
    np.testing.assert_allclose(queries.numpy(), expected, rtol=1e-6)


def test_agreement_by_hand() -> None:
    """20 documents along two axes: the first query finds the encoder's ten, the second none of them."""
    documents = torch.cat([torch.tensor([[1.0, 0.0]]).repeat(10, 1), torch.tensor([[0.0, 1.0]]).repeat(10, 1)])
    table = torch.eye(2)
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert agreement(table, bags_of([0], [1]), targets, documents) == Agreement(cosine=0.5, overlap=0.5)


def test_distinct_rows_lack_what_all_have_in_common_and_weigh_by_idf() -> None:
    """An id without a state has a row of zeros."""
    states = np.array([[1, 1], [1, 3], [5, 5], [0, 0]], dtype=np.float32)
    statistics = count_tokens([np.array([0, 1]), np.array([0])], vocab_size=4)
    rows = distinct_rows(states, statistics)
    common = np.array([1.0, 1 + 2 / 3])  # token 0 has two of the three postings, token 1 the third
    expected = (states[:3] - common) * np.log1p((2 - np.array([2, 1, 0]) + 0.5) / (np.array([2, 1, 0]) + 0.5))[:, None]
    expected /= np.linalg.norm(expected[:2], axis=1).mean()
    np.testing.assert_allclose(rows, [*expected, [0, 0]], rtol=1e-5)


def test_documents_without_a_token_leave_the_rows_as_they_are() -> None:
    """So it is where a table is fitted to queries, and the corpus is of another script."""
    states = np.array([[1, 1], [1, 3]], dtype=np.float32)
    rows = distinct_rows(states, count_tokens([np.empty(0, np.int32)], vocab_size=2))
    np.testing.assert_allclose(rows, states * np.log1p(1.5 / 0.5), rtol=1e-6)


def alone(encoder: BiEncoder) -> Encoders:
    return Encoders(encoder, None, EncodeRecipe(impacts="bm25", top_k=None, shard_size=50))


def test_bags_have_no_unknown_tokens_nor_texts_without_others(recipe: Path, tmp_path: Path, encoder: BiEncoder) -> None:
    loaded, settings = read_recipe(recipe, Recipe), DistilTableRecipe(sentences=False, held_out=2)
    unknown = encoder.tokenizer.unknown_id
    with (tmp_path / "corpus.jsonl").open("a", encoding="utf-8") as file:
        for name, text in (("odd", "music 🎉 player 党"), ("khmer", "ខ្មែរ")):
            file.write(json.dumps({"_id": name, "text": text}) + "\n")
    run_encode(loaded, alone(encoder))
    texts = DistilTexts.of(loaded, settings, encoder)
    assert unknown in encoder.tokenizer.encode("music 🎉")
    assert texts.documents[-2].tolist() == encoder.tokenizer.encode("music player").tolist()
    assert texts.documents[-1].size == 0
    assert texts.statistics.frequencies[unknown] == 0
    given = replace(texts, texts=["music 🎉", "ខ្មែរ", *QUERIES]).of_task("", tmp_path / "teacher")
    assert unknown not in given.bags.values
    assert len(given.bags) == len(given.targets) == COUNT + 2 + len(QUERIES)  # without the document and the text
    assert len(given.documents) == COUNT + 2
    few = DistilTexts.of(loaded, settings.model_copy(update={"documents": 3, "sentences": True}), encoder)
    rows = [row for row, vector in enumerate(texts.vectors) if (few.vectors == vector).all(axis=1).any()]
    assert [ids.tolist() for ids in few.documents] == [texts.documents[row].tolist() for row in rows]
    documents = list(encoded_corpus(loaded))
    assert few.texts == corpus_sentences([documents[row] for row in rows], None, 0) != []
    run("build", recipe)
    with warm(Bundle.open(tmp_path / "bundle"), Settings(deadline_ms=60_000, warm_up_queries=3)) as engine:
        assert engine.ready


def test_a_corpus_of_nothing_else_can_not_be_fitted_to(recipe: Path, tmp_path: Path, encoder: BiEncoder) -> None:
    loaded, settings = read_recipe(recipe, Recipe), DistilTableRecipe(sentences=False, held_out=2)
    lines = [json.dumps({"_id": f"k{number}", "title": "ខ្មែរ", "text": "漢" * number}) for number in range(3)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    run_encode(loaded, alone(encoder))
    with raises(RecipeError, naming="tiny-bi"):
        DistilTexts.of(loaded, settings, encoder)
    with_queries = settings.model_copy(update={"queries": [tmp_path / "queries.jsonl"]})
    given = DistilTexts.of(loaded, with_queries, encoder)
    assert not given.statistics.frequencies.any()
    assert len(given.of_task("", tmp_path / "teacher").bags) == len(QUERIES)


def toy() -> tuple[Vectors, FitTexts]:
    """Texts whose true vectors are means of hidden rows, so that training can find them. Token 30 is in no text."""
    random = np.random.default_rng(0)
    hidden = random.standard_normal((31, 8)).astype(np.float32)
    bags = Rows.of([random.integers(0, 30, size=random.integers(1, 6)).astype(np.int32) for _ in range(400)])
    targets = table_queries(torch.from_numpy(hidden), bags).numpy()
    documents = random.standard_normal((60, 8)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    return random.standard_normal((31, 8)).astype(np.float32), FitTexts(bags, targets, documents, held_out=100)


@pytest.mark.parametrize("part", ["cosine", "contrast", "kl"])
def test_each_part_of_the_loss_finds_the_teacher_s_ranking(part: str) -> None:
    weights = {"cosine": 0.0, "contrast": 0.0, "kl": 0.0} | {part: 1.0}
    rest = {"epochs": 30, "batch_size": 50, "learning_rate": 0.05, "temperature": 0.2}
    settings = DistilTableRecipe.model_validate({**weights, **rest})
    trained = fit_table(*toy(), settings, CPU)
    assert len(trained.epochs) == 31
    assert trained.epochs[0].overlap < 0.4
    assert trained.epochs[trained.best].overlap > 0.75
    assert trained.epochs[trained.best].overlap == max(epoch.overlap for epoch in trained.epochs)


@pytest.mark.parametrize("better", [True, False])
def test_the_better_of_the_fitted_and_the_general_table_is_used(better: bool) -> None:
    """By held-out texts: what is fitted to few texts may be worse than what was fitted to many before."""
    few, many = (
        DistilTableRecipe(epochs=count, batch_size=50, learning_rate=0.05) for count in ((0, 30) if better else (8, 0))
    )
    initial, texts = toy()
    general = fit_table(initial, texts, many, CPU).rows
    made = fit_table(initial, texts, few, CPU, general=general)
    assert made.general is not None
    assert made.facts["kept"] == ("general" if better else "fitted")
    assert ("is used" in agreement_line(made.facts)) == better
    assert np.array_equal(made.rows, general) == better


def test_training_is_deterministic_and_leaves_unseen_rows() -> None:
    settings = DistilTableRecipe(epochs=2, batch_size=50, learning_rate=0.05)
    initial = toy()[0]
    first, second = (fit_table(*toy(), settings, CPU).rows for _ in range(2))
    other = fit_table(*toy(), settings.model_copy(update={"seed": 1}), CPU).rows
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()
    np.testing.assert_array_equal(first[30], initial[30])
    assert (first[:30] != initial[:30]).any(axis=1).all()


def test_sentences_and_queries_are_drawn_by_seed(tmp_path: Path) -> None:
    lines = [
        '{"_id": "1", "title": "One good title here", "text": "First sentence of it. Short. First sentence of it."}',
        '{"_id": "2", "text": "Another line of text\\nand one more of them; then a last one."}',
        '{"_id": "3", "text": "これは検索エンジンのための短い文書です。次の文も十分に長い。"}',
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    corpus = Corpus(tmp_path / "corpus.jsonl")
    everything = corpus_sentences(corpus, None, 0)
    assert everything == [
        "One good title here",
        "First sentence of it.",
        "Another line of text",
        "and one more of them;",
        "then a last one.",
        "これは検索エンジンのための短い文書です。",
        "次の文も十分に長い。",
    ]
    some = corpus_sentences(corpus, 3, 0)
    assert len(some) == 3
    assert some == corpus_sentences(corpus, 3, 0)
    assert {tuple(corpus_sentences(corpus, 3, seed)) for seed in range(9)} != {tuple(some)}
    queries = write_queries(tmp_path, [f"q{number % 5}" for number in range(9)])
    assert query_texts([queries], None, 0) == [f"q{number}" for number in range(5)]
    assert len(query_texts([queries], 3, 0)) == 3


def test_teacher_vectors_are_kept_and_checked(encoder: BiEncoder, tmp_path: Path) -> None:
    vectors = teacher_vectors(encoder, QUERIES, "", tmp_path / "teacher")
    np.testing.assert_allclose(vectors, encoder.encode_queries(QUERIES).dense, atol=1e-3)
    (folder,) = (tmp_path / "teacher").glob("run-*")
    np.save(folder / "dense.npy", np.ones_like(vectors))
    np.testing.assert_array_equal(teacher_vectors(encoder, QUERIES, "", tmp_path / "teacher"), 1)  # not made again
    fewer = teacher_vectors(encoder, ["a new query", *QUERIES[1:]], "", tmp_path / "teacher")
    np.testing.assert_array_equal((fewer == 1).all(axis=1), [False] + [True] * (len(QUERIES) - 1))
    (file,) = (tmp_path / "teacher").glob("run-*/dense.npy")
    os.truncate(file, 100)
    with raises(ResumeError):
        teacher_vectors(encoder, QUERIES, "", tmp_path / "teacher")
    with raises(ResumeError, naming="plan.json"):
        teacher_vectors(encoder, QUERIES, "find", tmp_path / "teacher")


def test_what_is_encoded_when_a_run_is_stopped_is_kept(
    recipe: Path, tmp_path: Path, encoder: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, read, encode = read_recipe(recipe, Recipe), list[str](), BiEncoder.encode_documents

    def stopping(own: BiEncoder, texts: Sequence[str]) -> Encoded:
        if len(read) >= 80:
            raise Stopped(signal.SIGINT)
        read.extend(texts)
        return encode(own, texts)

    monkeypatch.setattr(BiEncoder, "encode_documents", stopping)
    with pytest.raises(Stopped):
        run_encode(loaded, alone(encoder))  # in the second shard of 50
    monkeypatch.undo()
    counts = run_encode(loaded, alone(encoder)).facts
    assert (counts["reused"], counts["encoded"], counts["removed"]) == (82, COUNT - 82, 0)
    fresh = read_recipe(recipe, Recipe, {"work": str(tmp_path / "fresh")})
    run_encode(fresh, alone(encoder))
    assert files(tmp_path / "work" / "encode") == files(tmp_path / "fresh" / "encode")


OF_LLAMA = {"epochs": 20, "batch_size": 16, "learning_rate": 0.02, "held_out": 12, "sentences": False}


@pytest.fixture
def of_llama(tmp_path: Path, model_folder: Path) -> Path:
    """The recipe of a language model whose table is fitted to the encoded corpus."""
    tasks, encode = {"web": "Find it", "other": "Find another"}, {"max_length": 32, "top_k": 40}
    sections: dict[str, Any] = {"kind": "language-model", "encode": encode, "distil": OF_LLAMA}
    return recipes.write_recipe(tmp_path, model_folder, documents=COUNT, tasks=tasks, **sections)


def test_a_fitted_table_makes_of_a_documents_tokens_what_the_model_makes_of_it(of_llama: Path, tmp_path: Path) -> None:
    run("build", of_llama)
    bundle, vectors = Bundle.open(tmp_path / "bundle"), encoded_rows(tmp_path / "work" / "encode").dense
    record = json.loads((tmp_path / "work/tables/web/training.json").read_text())
    run("build", change(of_llama, without="distil"), "--work", tmp_path / "work2", "--output", tmp_path / "plain")
    means = []
    for one in (Bundle.open(tmp_path / "plain"), bundle):
        tokenizer, table = one.tokenizer(), one.table("web")
        tokens = [tokenizer.encode(document.full_text)[:32] for document in tiny_documents(COUNT)]
        made = np.stack([table.rows(ids).mean(axis=0) for ids in tokens])
        means.append(float(((made * vectors).sum(axis=1) / np.linalg.norm(made, axis=1)).mean()))
    assert means[1] > means[0] + 0.05
    web, other = (bundle.table(task).rows(np.arange(100)) for task in ("web", "other"))
    assert not np.array_equal(web, other)  # each task's table is fitted from its own
    epochs = record["epochs"]
    assert len(epochs) == OF_LLAMA["epochs"] + 1
    assert epochs[record["agreement"]["epoch"]]["overlap"] == max(epoch["overlap"] for epoch in epochs)


def test_what_is_missing_or_was_changed_is_said(of_llama: Path, tmp_path: Path) -> None:
    with raises(ResumeError, naming="build --from encode"):
        run(*only("table"), of_llama)
    run(*only("encode"), of_llama)
    with raises(ResumeError, naming="table.npy"):
        run(*only("index"), of_llama)
    run(*only("table"), of_llama)
    fitted = of_llama.read_text()
    with raises(ResumeError, naming="--from table"):
        run(*only("index"), change(of_llama, without="distil"))
    of_llama.write_text(fitted)
    with (tmp_path / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "late", "text": "a late document"}\n')
    with raises(ResumeError, naming="1 of 121 documents"):
        run(*only("table"), of_llama)


def test_a_corpus_that_is_too_small_is_refused(of_llama: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", 9)
    with raises(RecipeError, naming="9 texts"):
        run("build", of_llama)
    assert not (tmp_path / "bundle").exists()


def test_two_encoders_side_by_side_make_one_bundle(recipe: Path, tmp_path: Path, encoder_folder: Path) -> None:
    """Its table ranks as both encoders together do, and the whole of them reads queries for comparison."""
    second = save_biencoder(tmp_path / "second", hidden_size=16, vocabulary=150)
    change(recipe, {"model.path": f"{encoder_folder} + {second}", "distil.epochs": 10})
    run("build", recipe)
    bundle = Bundle.open(tmp_path / "bundle")
    assert (bundle.manifest.model.name, bundle.manifest.dimension) == ("tiny-bi + second", 48)
    epochs = json.loads((tmp_path / "work" / "tables" / "search" / "training.json").read_text())["epochs"]
    assert max(epoch["overlap"] for epoch in epochs) > 0.3
    both = load_biencoders(f"{encoder_folder} + {second}", device="cpu")
    documents = [document.full_text for document in tiny_documents(COUNT)]
    vectors = bundle.dense().vectors(np.arange(COUNT))
    np.testing.assert_allclose(vectors, both.encode_documents(documents).dense, atol=2e-3)
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000, warm_up_queries=1)) as engine:
        answer = engine.search(SearchRequest(query="music player", k=5, mode="dense"))
    assert len(answer.hits) == 5
