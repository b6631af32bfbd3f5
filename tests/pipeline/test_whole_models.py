"""Queries that a whole model reads: all of an evaluation, by its formulas in numpy; and head queries, read once."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from tokenizers import Tokenizer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, CorpusError, ModelError, ResumeError
from lightretriever.artifacts.evaluation.full import encode_fully
from lightretriever.artifacts.pipeline.build import head_texts
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel, Reading, log_likelihoods
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import ModelRecipe, Recipe, read_recipe
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from lightretriever.artifacts.tokens.table import HeadQueries
from lightretriever.service.commands.evaluation import EngineSearcher
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.artifacts.test_evaluate import QRELS, QUERIES, runs_in, write_dataset
from tests.support import recipes
from tests.support.biencoder import save_biencoder, save_static
from tests.support.commands import only, run
from tests.support.judged import evaluate_bundle
from tests.support.models import load
from tests.support.recipes import encoded_rows, write_recipe
from tests.support.tampering import copy_of, edit_manifest, resign
from tests.support.tiny import tiny_documents, train_tokenizer
from tests.support.wordings import raises

INSTRUCTION = "Given a web search query, retrieve relevant passages"


@pytest.fixture(scope="module")
def built(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle of 60 documents, made from the tiny model, and its work directory."""
    folder = tmp_path_factory.mktemp("full")
    sections: dict[str, Any] = {"encode": {"max_length": 64, "top_k": None}}
    sections["index"] = {"table_dtype": "float32", "dimension": 24}
    run("build", write_recipe(folder, model_folder, documents=60, tasks={"web": INSTRUCTION}, **sections))
    return folder


def test_both_legs_rank_by_the_model_s_vectors(
    built: Path, model_folder: Path, tmp_path: Path, backbone: Backbone
) -> None:
    dataset, model = write_dataset(tmp_path / "toy", QRELS), ModelRecipe(path=str(model_folder))
    evaluated = evaluate_bundle(built / "bundle", dataset, tmp_path / "out", query_model=model)
    light = ["dense", "sparse", "hybrid"]
    assert list(evaluated["metrics"]) == [*light, "full-dense", "full-sparse", "full-hybrid", "bm25"]
    assert evaluated["warnings"] == []
    rows = encoded_rows(built / "work" / "encode")
    names = [document.id.replace(" ", "%20") for document in read_recipe(built / "recipe.yaml", Recipe).corpus.open()]
    documents = rows.dense[:, :24].astype(np.float64)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    impacts = np.zeros((len(names), backbone.vocab_size))
    for row, (terms, values) in enumerate(rows.sparse):
        impacts[row, terms] = values
    made = LanguageModel.of(backbone).encode_queries(list(QUERIES.values()), INSTRUCTION)
    found = {system: runs_in(tmp_path / "out", system) for system in ("full-dense", "full-sparse")}
    for query, vector, (terms, weights) in zip(QUERIES, made.dense[:, :24], made.sparse or [], strict=True):
        dense_scores = documents @ vector
        assert found["full-dense"][query] == [names[i] for i in np.argsort(-dense_scores, kind="stable")]
        sparse_scores = impacts[:, terms] @ weights
        by_name = dict(zip(names, sparse_scores, strict=True))
        in_order = [by_name[name] for name in found["full-sparse"][query]]
        assert in_order == pytest.approx(sorted(sparse_scores[sparse_scores > 0], reverse=True), rel=1e-5)
    assert evaluated["metrics"]["full-sparse"]["R@100"] > 0


def test_learned_weights_are_not_multiplied_by_impacts_of_bm25(model_folder: Path, tmp_path: Path) -> None:
    settings = {"encode": {"impacts": "bm25"}, "index": {"vocabulary": "tokens"}}
    run("build", write_recipe(tmp_path, model_folder, documents=60, tasks={"web": INSTRUCTION}, **settings))
    dataset, model = write_dataset(tmp_path / "toy", QRELS), ModelRecipe(path=str(model_folder))
    found = evaluate_bundle(tmp_path / "bundle", dataset, tmp_path / "out", query_model=model)
    assert list(found["metrics"]) == ["dense", "sparse", "hybrid", "full-dense", "full-hybrid", "bm25"]


def test_another_first_token_is_warned_of(built: Path, model_folder: Path, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "toy", QRELS)
    model = ModelRecipe(path=str(model_folder), bos_token="<|endoftext|>")
    report = evaluate_bundle(built / "bundle", dataset, tmp_path / "out", only=["full-dense"], query_model=model)
    (warning,) = report["warnings"]
    assert "is not the very one of the documents" in warning
    assert report["settings"]["query_model"] == {"name": "llama", "adapter": None, "bos_token": "<|endoftext|>"}


def test_a_model_with_another_tokenizer_is_refused(tiny_bundle: Bundle, model_folder: Path, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "toy", QRELS)
    with raises(ModelError):
        evaluate_bundle(tiny_bundle.path, dataset, tmp_path / "out", query_model=ModelRecipe(path=str(model_folder)))


@pytest.mark.parametrize("static", [False, True])
def test_a_biencoder_ranks_by_its_own_vectors(static: bool, tmp_path: Path) -> None:
    biencoder = tmp_path / "model"
    if static:
        train_tokenizer(tmp_path / "tokenizer.json", [document.full_text for document in tiny_documents(80)])
        save_static(biencoder, Tokenizer.from_file(str(tmp_path / "tokenizer.json")), 16)
    else:
        save_biencoder(biencoder)
    settings = {"distil": {"epochs": 0, "batch_size": 16}}
    run("build", write_recipe(tmp_path, biencoder, documents=60, tasks={"web": ""}, **settings))
    dataset = write_dataset(tmp_path / "toy", QRELS)
    model = ModelRecipe(path=str(biencoder))
    found = evaluate_bundle(tmp_path / "bundle", dataset, tmp_path / "out", query_model=model)
    assert list(found["metrics"])[3:] == ["full-dense", "full-hybrid", "bm25"]
    assert found["warnings"] == []
    encoder = SentenceTransformer(str(biencoder), device="cpu", trust_remote_code=False)
    documents = tiny_documents(60)
    vectors = encoder.encode([document.full_text for document in documents], normalize_embeddings=True)
    for query, text in QUERIES.items():
        scores = dict(zip([document.id for document in documents], vectors @ encoder.encode(text), strict=True))
        in_order = [float(scores[name.replace("%20", " ")]) for name in runs_in(tmp_path / "out", "full-dense")[query]]
        assert len(in_order) == 60
        assert in_order == pytest.approx(sorted(in_order, reverse=True), abs=2e-2)  # documents are stored with 11 bits


@pytest.mark.parametrize(
    ("behind", "of_texts"),
    [
        ([Normalize()], True),
        ([Dense(8, 6, activation_function=torch.nn.Identity())], True),
        ([Dense(8, 8), Normalize()], False),  # a mean of tanh is not the tanh of a mean
        ([Normalize(), Dense(8, 6, activation_function=torch.nn.Identity())], False),
    ],
)
def test_modules_behind_static_embeddings_read_rows(
    tmp_path: Path, behind: list[torch.nn.Module], of_texts: bool
) -> None:
    documents = [document.full_text.lower() for document in tiny_documents(40)]
    documents = [text for text in documents if "<|endoftext|>" not in text]  # which only the encoder takes for a token
    train_tokenizer(tmp_path / "tokenizer.json", documents)
    save_static(tmp_path / "model", Tokenizer.from_file(str(tmp_path / "tokenizer.json")), 8, *behind)
    encoder = load_biencoder(str(tmp_path / "model"), device="cpu")
    rows = token_rows(encoder, "", tmp_path)
    parts = {part for text in documents for part in (*text.split(), *text)}
    singles = sorted(part for part in parts if len(encoder.tokenizer.encode(part)) == 1)
    assert len(singles) > 20
    texts = [*singles, *(documents if of_texts else [])]
    means = np.stack([rows[encoder.tokenizer.encode(text)].mean(axis=0) for text in texts])
    vectors = encoder.encode_queries(texts).dense
    np.testing.assert_allclose(means / np.linalg.norm(means, axis=1, keepdims=True), vectors, atol=1e-5)


def test_hits_are_reranked_by_query_likelihood(built: Path, model_folder: Path, tmp_path: Path) -> None:
    """The hits of `hybrid`, by log P(q | d) of the model read one document at a time."""
    dataset, model = write_dataset(tmp_path / "toy", QRELS), ModelRecipe(path=str(model_folder))
    evaluate_bundle(built / "bundle", dataset, tmp_path / "out", only=["hybrid-likelihood"], query_model=model)
    backbone = load(model_folder)
    texts = {document.id.replace(" ", "%20"): document.full_text for document in tiny_documents(60)}
    hybrid, ranked = (runs_in(tmp_path / "out", system) for system in ("hybrid", "hybrid-likelihood"))
    reading = Reading("", "")
    for name, query in QUERIES.items():
        assert set(ranked[name]) == set(hybrid[name])
        ids = backbone.tokenizer.encode(query).tolist()
        read = reading.document_ids(backbone, [texts[document] for document in ranked[name]], 512)
        with torch.inference_mode():
            in_order = log_likelihoods(backbone, reading, read, [ids] * len(read), 256).tolist()
        assert in_order == pytest.approx(sorted(in_order, reverse=True), rel=1e-4)
        assert ranked[name] != hybrid[name]


TASKS = {"web": "Given a web search query, retrieve relevant passages", "fact": "Given a claim, find its evidence"}
LOG = ["Play  Music", "a text editor", "play music", "a text editor", "chess games", "play music ", "rare one"]
HEAD = ["play music", "a text editor", "chess games"]
MODES = ("dense", "sparse", "hybrid")


def head_recipe(folder: Path, model: Path, **changes: Any) -> Path:
    (folder / "queries.log").write_text("\n".join(LOG) + "\n")
    sections: dict[str, Any] = {"tasks": TASKS, "index": {"dimension": 24}, **changes}
    return recipes.write_recipe(folder, model, documents=40, **sections)


@pytest.fixture(scope="module")
def place(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle without head queries, and one with three of them, from one encoding."""
    folder = tmp_path_factory.mktemp("head")
    recipe = head_recipe(folder, model_folder, encode={"max_length": 64, "top_k": None})
    run("build", recipe)
    options: list[str | Path] = ["--head-queries", folder / "queries.log", "--top", "3"]
    made = json.loads(run(*only("table"), recipe, *options, "--json").splitlines()[0])
    assert {task: table["head_queries"] for task, table in made["tables"].items()} == {"web": 3, "fact": 3}
    assert "has head queries, which this recipe leaves out" in run(*only("index"), recipe, "--overwrite")
    run(*only("index"), recipe, *options, "--output", folder / "with")
    return folder


@pytest.fixture(scope="module")
def engines(place: Path) -> Iterator[list[SearchEngine]]:
    """The engines of the bundles with and without head queries."""
    settings = Settings(deadline_ms=60_000)
    with (
        SearchEngine.open(Bundle.open(place / "with"), settings) as one,
        SearchEngine.open(Bundle.open(place / "bundle"), settings) as other,
    ):
        yield [one, other]


def ranked(engine: SearchEngine, query: str, mode: str, task: str = "web") -> list[tuple[str, float]]:
    found = EngineSearcher(engine).search(query, task=task, mode=mode, k=40, candidates=40, fusion=None)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("task", TASKS)
def test_a_head_query_ranks_as_the_whole_model(engines: list[SearchEngine], model_folder: Path, task: str) -> None:
    engine, without = engines
    full, warnings = encode_fully(ModelRecipe(path=str(model_folder)), engine.bundle, task, HEAD)
    assert warnings == []
    searcher = EngineSearcher(engine).with_vectors(full.queries)
    for query in HEAD:
        exact = searcher.search(query, task=task, mode="dense", k=40, candidates=40, fusion=None)
        assert exact is not None
        found = dict(ranked(engine, f" {query.upper()}\t", "dense", task))
        assert found == pytest.approx(dict(exact), abs=2e-3)  # vectors have 11 bits
        assert [one for one, _ in ranked(engine, query, "dense", task)][:10] == [one for one, _ in exact][:10]
        assert found != dict(ranked(without, query, "dense", task))
        assert ranked(engine, query, "sparse", task) == ranked(without, query, "sparse", task)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("query", ["rare one", "play music files", "the terminal"])
def test_another_query_is_unchanged(engines: list[SearchEngine], mode: str, query: str) -> None:
    engine, without = engines
    assert ranked(engine, query, mode) == ranked(without, query, mode)


def test_a_query_with_added_words_is_read_by_the_table(engines: list[SearchEngine]) -> None:
    for added, head in (((), True), ([("video", 0.5)], False)):
        encoded = engines[0].parts.encoder.encode("play music", "web", StageClock(), added=added)
        assert encoded.head is head


def test_the_answer_says_who_read_the_query(engines: list[SearchEngine]) -> None:
    engine, without = engines
    with TestClient(create_app(engine)) as client, TestClient(create_app(without)) as other:
        for query, head in (("Play Music", True), ("play some music", False)):
            told = client.post("/search", json={"query": query, "explain": True, "k": 3}).json()
            assert told["head_query"] is head
            for hit in told["hits"]:
                words = hit["explanation"]["words"]
                assert sum(word["sparse"] for word in words) == pytest.approx(hit["sparse"]["score"], rel=1e-5)
                assert all((word["dense"] is None) == head for word in words)
            assert client.post("/encode", json={"text": query}).json()["head_query"] is head
        assert "head_query" not in other.post("/search", json={"query": "play music"}).json()
        words_alone = client.post("/search", json={"query": "play music", "mode": "sparse", "explain": True}).json()
        assert words_alone["head_query"] is False
        assert client.get("/info").json()["head_queries"] == {"web": 3, "fact": 3}
        assert "head_queries" not in other.get("/info").json()


def test_verify_and_the_service_find_damage(place: Path, tmp_path: Path) -> None:
    assert verify_bundle(place / "with") == []
    damaged = copy_of(place / "with", tmp_path)
    file = damaged / "heads" / "web.npy"
    content, values = file.read_bytes(), np.load(file)
    values[1, 0] = 9
    np.save(file, values)
    assert [problem.file for problem in verify_bundle(damaged)] == ["heads/web.npy"]  # by its hash
    resign(damaged)
    (problem,) = verify_bundle(damaged)
    assert (problem.message, problem.found) == ("the values of a head query are impossible", "'a text editor'")
    file.write_bytes(content)
    resign(damaged)
    for content in (b"[1, 2]", b'["a", "a", "b"]', b'["a"]', b"{"):
        (damaged / "heads" / "web.json").write_bytes(content)
        resign(damaged)
        (problem,) = verify_bundle(damaged)
        assert "unusable head queries" in problem.found
        with raises(BundleError):
            SearchEngine.open(Bundle.open(damaged))
    edit_manifest(damaged, lambda record: record["tasks"]["web"]["head"].update(queries=4))
    (damaged / "heads" / "web.json").write_bytes((place / "with" / "heads" / "web.json").read_bytes())
    resign(damaged)
    with raises(BundleError):
        Bundle.open(damaged).head("web")


@pytest.mark.parametrize("vector", [[0.0, 0.0, 1.0], [np.nan, 1.0, 1.0]])
def test_a_vector_without_direction_is_refused(vector: list[float], tmp_path: Path) -> None:
    made = HeadQueries(["one"], np.array([vector], np.float32), lowercase=True)
    with raises(BundleError, naming="model.dtype"):
        made.save([tmp_path / "texts.json", tmp_path / "vectors.npy"], 2)


def test_a_log_is_counted(model_folder: Path, tmp_path: Path) -> None:
    recipe = head_recipe(tmp_path, model_folder)

    def counted(name: str, top: int, lowercase: bool) -> list[str]:
        head = {"head.queries": tmp_path / name, "head.top": top, "encode.lowercase": lowercase}
        return head_texts(read_recipe(recipe, Recipe, head))

    (tmp_path / "log").write_text("\ufeff" + "\n\n".join(LOG) + "\r\n", encoding="utf-8")
    (tmp_path / "log.gz").write_bytes(gzip.compress((tmp_path / "log").read_bytes()))
    for name in ("log", "log.gz"):
        assert counted(name, 3, lowercase=True) == HEAD
    assert counted("log", 9, lowercase=False)[:3] == ["a text editor", "play music", "Play Music"]


@pytest.mark.parametrize("content", [None, b" \n\n", b"one\n\xff\n", b'one\n{"_id": "1", "text": "two"}\n'])
def test_a_bad_log_is_named_before_the_model_reads(content: bytes | None, model_folder: Path, tmp_path: Path) -> None:
    recipe = head_recipe(tmp_path, model_folder)
    if content is not None:
        (tmp_path / "log").write_bytes(content)
    for command in (["build"], only("table")):
        with raises(CorpusError):
            run(*command, recipe, "--head-queries", tmp_path / "log")
    assert not (tmp_path / "work" / "tables").exists()


def test_of_another_log_new_queries_are_read(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = head_recipe(tmp_path, model_folder, tasks={"web": ""}, head={"queries": str(tmp_path / "queries.log")})
    read, encode = list[str](), LanguageModel.encode_queries

    def watched(encoder: LanguageModel, texts: list[str], *rest: Any, **options: Any) -> Any:
        read.extend(texts)
        return encode(encoder, texts, *rest, **options)

    monkeypatch.setattr(LanguageModel, "encode_queries", watched)
    for _ in range(2):
        run(*only("table"), recipe)
        assert read == ["play music", "a text editor", "chess games", "rare one"]
    run(*only("encode"), recipe)
    (tmp_path / "queries.log").write_text("chess games\nanother one\n")
    with raises(ResumeError):
        run(*only("index"), recipe)
    run(*only("table"), recipe)
    assert read[4:] == ["another one"]  # the vector of the other was there
    run(*only("index"), recipe)
    head = Bundle.open(tmp_path / "bundle").head("web")
    assert head is not None
    assert head.find("chess games") is not None
    assert head.find("play music") is None
