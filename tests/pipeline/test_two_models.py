"""Bundles whose legs have a model each, and a tokenizer each: against both legs computed over all documents. Folders of
sentence-transformers as sources of a leg: SparseEncoders, and asymmetric models of both kinds."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from fastapi.testclient import TestClient
from sentence_transformers import SentenceTransformer, SparseEncoder

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, ModelError, ResumeError
from lightretriever.artifacts.evaluation.full import encode_fully
from lightretriever.artifacts.pipeline.encoder import Encoder, TextModel, token_rows
from lightretriever.artifacts.pipeline.encoders import load_encoder, load_sparse_encoder
from lightretriever.artifacts.pipeline.impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.loading import route
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, ModelRecipe
from lightretriever.artifacts.pipeline.rows import TermCounts
from lightretriever.artifacts.pipeline.sentence_models import SparseModel, load_biencoder
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.service.commands.evaluation import EngineSearcher
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.biencoder import save_biencoder, save_dense_router, save_sparse_model
from tests.support.commands import only, run
from tests.support.models import save_model
from tests.support.recipes import encoded_rows, write_recipe
from tests.support.tampering import copy_of, edit_json, edit_manifest, resign
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

COUNT = 60
TEXTS = [document.full_text for document in tiny_documents(COUNT)]
QUERIES = ["music player", "text editor for the terminal", "The terminal, the network"]
FIT = {"epochs": 1, "batch_size": 32, "held_out": 20}
Scores = npt.NDArray[np.float64]


@dataclass
class Built:
    """A bundle, its engine and its route, and the encoders of its two legs."""

    kind: str
    bundle: Bundle
    engine: SearchEngine
    client: TestClient
    dense: Encoder
    sparse: SparseModel | LanguageModel

    def search(self, query: str, mode: str = "hybrid", **changes: Any) -> dict[str, Any]:
        asked = {"query": query, "mode": mode, "k": COUNT, "candidates": COUNT, "fields": [], **changes}
        answer = self.client.post("/search", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def dense_scores(self, tokens: dict[int, float]) -> Scores:
        """By the table and the encoded documents."""
        rows = self.bundle.table("search").rows(np.array(list(tokens)))
        total = np.array(list(tokens.values())) @ rows.astype(np.float64)
        vectors = encoded_rows(self.bundle.path.parent / "work" / "encode").dense.astype(np.float64)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) @ (total / np.linalg.norm(total)))

    def sparse_scores(self, tokens: dict[int, float]) -> Scores:
        """By what the sparse model, or BM25, makes of its own tokens."""
        learned = None if self.kind == "bm25" else self.sparse.encode_impacts(TEXTS)
        weights = None if isinstance(self.sparse, LanguageModel) else self.sparse.weights
        terms = Vocabulary(self.sparse.tokenizer, None)
        bm25 = Bm25Encoder.of(TermCounts.of(terms.terms_of(TEXTS)), terms, quantization=100, k1=0.9, b=0.4)
        names = np.array([*bm25.numbers]).astype(np.int32)
        rows = learned or [(names[terms], impacts) for terms, impacts in bm25.impacts(TEXTS)]
        found = np.zeros(COUNT)
        for number, row in enumerate(rows):
            impacts = dict(zip(*row, strict=True))
            for token, count in tokens.items():
                found[number] += count * (1 if weights is None else weights[token]) * float(impacts.get(token, 0))
        return found


@pytest.fixture(scope="module", params=["bm25", "learned"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """BERT beside impacts of a llama's tokens, or a llama beside those of a SparseEncoder on BERT's tokens."""
    kind, folder = request.param, tmp_path_factory.mktemp("two")
    bert, llama = save_biencoder(folder / "tiny-bert", vocabulary=350), save_model(folder / "tiny-llama", "llama")
    learned = kind == "learned"
    sparse = ModelRecipe(path=str(save_sparse_model(folder / "tiny-doc", bert) if learned else llama), device="cpu")
    recipe = write_recipe(
        folder,
        llama if learned else bert,
        documents=COUNT,
        tasks={"search": ""},
        sparse={"path": sparse.path, "device": "cpu", "name": "other", "licence": "MIT"},
        encode={"shard_size": 25, "max_length": 64, "impacts": kind, "top_k": None},
        index={"table_dtype": "float32", "vocabulary": "tokens"},
        head={"queries": str(folder / "queries.log"), "top": 1},
        **({} if learned else {"distil": FIT}),
    )
    (folder / "queries.log").write_text("chess games\nchess games\nother\n")
    run("build", recipe)
    bundle, settings = Bundle.open(folder / "bundle"), EncodeRecipe(impacts=kind, top_k=None, max_length=64)
    dense = (
        load_encoder(ModelRecipe(path=str(llama), device="cpu"), EncodeRecipe(impacts="bm25"), biencoder=False)
        if learned
        else load_biencoder(str(bert), device="cpu")
    )
    with (
        SearchEngine.open(bundle, Settings(deadline_ms=60_000, warm_up_queries=1)) as engine,
        TestClient(create_app(engine)) as client,
    ):
        yield Built(kind, bundle, engine, client, dense, load_sparse_encoder(sparse, settings))


def counted(encoder: TextModel, query: str) -> dict[int, float]:
    return {token: float(count) for token, count in Counter(encoder.tokenizer.query_ids(query)).items()}


def test_the_bundle_says_what_it_is_made_of(built: Built) -> None:
    manifest = built.bundle.manifest
    assert verify_bundle(built.bundle.path) == []
    read, own = built.dense.tokenizer, manifest.sparse.tokenizer
    assert (manifest.tokenizer.sha256, manifest.vocab_size) == (read.sha256, read.vocab_size)
    assert own is not None
    assert own.file == "sparse_tokenizer.json"
    assert (own.sha256, own.vocab_size) == (built.sparse.tokenizer.sha256, built.sparse.tokenizer.vocab_size)
    assert manifest.sparse_vocab_size != manifest.vocab_size
    told = manifest.sparse.model
    assert told is not None
    assert (told.name, told.sha256, told.licence) == ("other", built.sparse.fingerprint, "MIT")
    assert (manifest.model.name, manifest.model.sha256) == (built.dense.name, built.dense.fingerprint)
    facts = built.client.get("/info").json()["bundle"]
    assert facts["sparse_model"] == told.model_dump()
    assert facts["sparse_vocab_size"] == own.vocab_size


@pytest.mark.parametrize("query", QUERIES)
def test_both_legs_rank_as_over_all_documents(built: Built, query: str) -> None:
    ids = [document.id for document in tiny_documents(COUNT)]
    legs = {
        "dense": built.dense_scores(counted(built.dense, query)),
        "sparse": built.sparse_scores(counted(built.sparse, query)),
    }
    for leg, scores in legs.items():
        expected = {name: score for name, score in zip(ids, scores, strict=True) if leg == "dense" or score > 0}
        hits = built.search(query, leg)["hits"]
        assert {hit["id"]: hit["score"] for hit in hits} == pytest.approx(expected, rel=1e-4, abs=1e-4)
    hits = built.search(query)["hits"]
    for hit in hits:
        for leg, scores in legs.items():
            assert hit[leg]["score"] == pytest.approx(scores[ids.index(hit["id"])], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_explained_shares_add_up_to_the_scores_of_their_legs(built: Built, mode: str) -> None:
    answer = built.search(QUERIES[2], mode, explain=True, k=5)
    assert answer["hits"]
    encoders = {"dense": built.dense, "sparse": built.sparse}
    for hit in answer["hits"]:
        words = hit["explanation"]["words"]
        for leg, part in (("dense", "tokens"), ("sparse", "terms")):
            own = [one for word in words for one in word[part]]
            if mode not in (leg, "hybrid"):
                assert {word[leg] for word in words} == {None}
                continue
            assert sum(word[leg] for word in words) == pytest.approx(hit[leg]["score"], rel=1e-4, abs=1e-5)
            assert sum(one[leg] for one in own) == pytest.approx(hit[leg]["score"], rel=1e-4, abs=1e-5)
            spelt = {int(one["term"] if leg == "sparse" else one["id"]): one for one in own}
            assert set(spelt) == set(counted(encoders[leg], QUERIES[2]))
            text = {"dense": "token", "sparse": "text"}[leg]
            assert all(encoders[leg].tokenizer.token(token) == one[text] for token, one in spelt.items())


def test_a_text_is_encoded_and_a_document_listed_by_the_right_tokenizer(built: Built) -> None:
    told = built.client.post("/encode", json={"text": QUERIES[0]}).json()
    for encoder, spelt in (
        (built.dense, [token["token"] for token in told["tokens"]]),
        (built.sparse, [term["text"] for term in told["terms"]]),
    ):
        ids = set(encoder.tokenizer.query_ids(QUERIES[0]))
        assert sorted(spelt) == sorted(encoder.tokenizer.token(one) for one in ids)
    listed = built.client.get("/terms/doc-30").json()["terms"]
    assert listed
    assert all(built.sparse.tokenizer.token(int(term["term"])) == term["text"] for term in listed)
    marked = built.search("player", snippets={"fields": ["text"]}, fields=["text"])["hits"]
    assert any(hit["snippets"]["text"]["marks"] for hit in marked)


def test_a_leg_without_a_token_leaves_the_answer_to_the_other(built: Built) -> None:
    """BERT knows no emoji; the llama spells everything in bytes."""
    silent, speaking = ("sparse", "dense") if built.kind == "learned" else ("dense", "sparse")
    hits = built.search("🎉", explain=True)["hits"]
    alone = built.search("🎉", speaking)["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in alone]
    assert all(hit[silent] is None or hit[silent] == {"score": 0.0, "rank": None} for hit in hits)
    refused = built.client.post("/search", json={"query": "🎉", "mode": silent}).json()
    assert (refused["status"], refused["kind"], refused["errors"][0]["field"]) == (422, "unsearchable_query", "query")


def test_a_head_query_has_the_vector_of_the_dense_model(built: Built) -> None:
    assert built.search("Chess  games")["head_query"] is True
    vector = built.engine.parts.encoder.encode("chess games", "search", StageClock()).dense
    assert vector == pytest.approx(built.dense.encode_queries(["chess games"]).dense[0], abs=2e-3)


def test_a_whole_model_reads_for_the_dense_leg(built: Built) -> None:
    path = built.bundle.path.with_name("tiny-llama" if built.kind == "learned" else "tiny-bert")
    full, warnings = encode_fully(ModelRecipe(path=str(path)), built.bundle, "search", QUERIES)
    assert (warnings, bool(full.sparse)) == ([], False)
    light = EngineSearcher(built.engine)
    searcher = full.searcher(light, "search")
    asked: dict[str, Any] = {"task": "search", "k": COUNT, "candidates": COUNT, "fusion": None}
    for query in QUERIES:
        assert searcher.search(query, mode="sparse", **asked) == light.search(query, mode="sparse", **asked)
        assert searcher.search(query, mode="dense", **asked) != light.search(query, mode="dense", **asked)


def test_an_index_needs_the_section_that_the_impacts_were_made_with(built: Built, tmp_path: Path) -> None:
    recipe = yaml.safe_load((built.bundle.path.parent / "recipe.yaml").read_text())
    del recipe["sparse"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"encode": {"top_k": None}}))
    with raises(ResumeError, naming="encode.max_length"):
        run(*only("index"), tmp_path / "recipe.yaml", "--output", tmp_path / "bundle")


def test_verify_finds_a_swapped_tokenizer(built: Built, tmp_path: Path) -> None:
    damaged = copy_of(built.bundle.path, tmp_path)
    (damaged / "sparse_tokenizer.json").write_bytes((damaged / "tokenizer.json").read_bytes())
    assert {problem.file for problem in verify_bundle(damaged)} == {"sparse_tokenizer.json"}
    resign(damaged)
    (problem,) = verify_bundle(damaged)
    assert "tokenizer.sha256 of sparse_tokenizer.json is" in problem.found
    right = json.loads((damaged / "manifest.json").read_bytes())["files"]["sparse_tokenizer.json"]["sha256"]
    edit_manifest(damaged, lambda record: record["sparse"]["tokenizer"].update(sha256=right))
    (problem,) = verify_bundle(damaged)
    assert (problem.file, problem.message) == ("sparse_tokenizer.json", "wrong number of token ids")
    with raises(BundleError, naming="sparse_tokenizer.json"):
        SearchEngine.open(Bundle.open(damaged))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    dense = save_biencoder(root / "tiny-bi")
    return {
        "dense": dense,
        "sparse": save_sparse_model(root / "tiny-doc-v3", dense),
        "splade": save_sparse_model(root / "tiny-splade", dense, static_queries=False),
        "router": save_dense_router(root / "tiny-router", dense),
    }


def test_impacts_and_query_weights_are_the_library_s(folders: dict[str, Path]) -> None:
    model: Any = SparseEncoder(str(folders["sparse"]), device="cpu")
    expected = model.encode_document(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).numpy()
    encoder = load_sparse_encoder(ModelRecipe(path=str(folders["sparse"])), EncodeRecipe(top_k=None))
    rows = encoder.encode_impacts(TEXTS)
    assert len(rows) == COUNT
    for (terms, impacts), weights in zip(rows, expected, strict=True):
        exact = 100 * weights.astype(np.float64)  # in its last bits a weight depends on the texts beside it
        np.testing.assert_allclose(impacts, exact[terms], rtol=0, atol=0.501)
        assert set(np.flatnonzero(exact > 0.501)) <= set(terms.tolist()) <= set(np.flatnonzero(exact > 0.499))
    asked = model.encode_query(["music player"], convert_to_sparse_tensor=False).numpy()[0]
    assert isinstance(encoder, SparseModel)
    assert encoder.weights is not None
    tokens = encoder.tokenizer.query_ids("music player")
    np.testing.assert_allclose(encoder.weights[tokens], asked[tokens])
    assert (encoder.weights > 0).all()  # those of special tokens, which are 0, can't matter


def test_documents_longer_than_the_sparse_model_reads_are_counted(folders: dict[str, Path]) -> None:
    encoder = load_sparse_encoder(ModelRecipe(path=str(folders["sparse"])), EncodeRecipe())
    theirs = route(SparseEncoder(str(folders["sparse"]), device="cpu"), "document")[0].tokenizer
    lengths = [len(theirs(text, truncation=False)["input_ids"]) for text in TEXTS]
    assert encoder.are_cut(TEXTS) == [length > 64 for length in lengths]
    assert any(encoder.are_cut(TEXTS))


def test_queries_with_another_vocabulary_than_documents_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(folders["sparse"], tmp_path / "other"))
    (file,) = other.glob("query_*/tokenizer.json")
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    words["music"], words["player"] = words["player"], words["music"]
    file.write_text(json.dumps(content))
    with raises(ModelError):
        load_sparse_encoder(ModelRecipe(path=str(other)), EncodeRecipe())


@pytest.mark.parametrize(("model", "impacts"), [("sparse", "bm25"), ("splade", "learned")])
def test_queries_weigh_their_count(folders: dict[str, Path], tmp_path: Path, model: str, impacts: str) -> None:
    """Where the recipe takes BM25 in place of learned impacts, and where a model would read the queries."""
    sections: dict[str, Any] = {
        "sparse": {"path": str(folders[model]), "device": "cpu"},
        "encode": {"impacts": impacts},
    }
    run("build", write_recipe(tmp_path, folders["dense"], documents=COUNT, **sections, distil=FIT))
    assert verify_bundle(tmp_path / "bundle") == []
    made = Bundle.open(tmp_path / "bundle").manifest.sparse
    assert (made.impacts, made.query_weights, made.tokenizer) == (impacts, "count", None)  # both have one


def test_an_asymmetric_bi_encoder_reads_each_side_by_its_own_modules(folders: dict[str, Path], tmp_path: Path) -> None:
    model = SentenceTransformer(str(folders["router"]), device="cpu")
    encoder = load_biencoder(str(folders["router"]), device="cpu")
    options: Any = {"normalize_embeddings": True, "show_progress_bar": False}
    documents = encoder.encode_documents(TEXTS).dense
    np.testing.assert_allclose(documents, model.encode_document(TEXTS, **options), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(QUERIES).dense, model.encode_query(QUERIES, **options), atol=1e-5)
    rows = token_rows(encoder, "", tmp_path)
    for query in QUERIES:  # a table of static embeddings is the whole model of the queries
        mean = rows[encoder.tokenizer.encode(query)].mean(axis=0)
        np.testing.assert_allclose(mean / np.linalg.norm(mean), encoder.encode_queries([query]).dense[0], atol=1e-5)
    whole = load_biencoder(str(folders["dense"]), device="cpu")
    assert encoder.are_cut(TEXTS) == whole.are_cut(TEXTS)
    assert any(encoder.are_cut(TEXTS))
    assert encoder.fingerprint != whole.fingerprint


def test_a_changed_prompt_is_another_sparse_model(folders: dict[str, Path], tmp_path: Path) -> None:
    found = set()
    for number, prompts in enumerate(({}, {"document": "text: "}, {"document": "passage: "})):
        other = Path(shutil.copytree(folders["splade"], tmp_path / str(number)))
        edit_json(other / "config_sentence_transformers.json", prompts=prompts)
        encoder = load_sparse_encoder(ModelRecipe(path=str(other)), EncodeRecipe())
        found.add((encoder.fingerprint, encoder.encode_impacts(TEXTS[:1])[0][1].tobytes()))
    assert [len(set(column)) for column in zip(*found, strict=True)] == [3, 3]


def test_a_swapped_path_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with raises(ModelError, naming="tiny-doc-v3"):
        load_biencoder(str(folders["sparse"]), device="cpu")
    with raises(ModelError, naming="tiny-bi"):
        load_sparse_encoder(ModelRecipe(path=str(folders["dense"])), EncodeRecipe())
