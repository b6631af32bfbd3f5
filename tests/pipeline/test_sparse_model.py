"""Folders of sentence-transformers as sources of a leg: SparseEncoders, and asymmetric models of both kinds."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer, SparseEncoder

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.biencoder import load_biencoder
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.encoders import load_sparse_encoder
from lightretriever.artifacts.pipeline.loading import route
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe, ModelRecipe
from lightretriever.artifacts.pipeline.sparse_model import SparseModel
from tests.support import recipes
from tests.support.biencoder import save_biencoder
from tests.support.commands import run
from tests.support.sparse_model import save_dense_router, save_sparse_model
from tests.support.tampering import edit_json
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

COUNT = 60
TEXTS = [document.full_text for document in tiny_documents(COUNT)]
QUERIES = ["music player", "text editor for the terminal", "network traffic"]


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


def write_recipe(tmp_path: Path, model: Path, sparse: Path | None, **encode: object) -> Path:
    return recipes.write_recipe(
        tmp_path,
        model,
        documents=COUNT,
        tasks={"search": ""},
        encode={"shard_size": 25, **encode},
        index={"factory": "Flat", "table_dtype": "float32"},
        distil={"epochs": 1, "batch_size": 32, "held_out": 20},
        **({} if sparse is None else {"sparse": {"path": str(sparse), "device": "cpu"}}),
    )


def build(recipe: Path) -> Bundle:
    run("build", recipe)
    return Bundle.open(recipe.parent / "bundle")


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
    bundle = build(write_recipe(tmp_path, folders["dense"], folders[model], impacts=impacts))
    sparse = bundle.manifest.sparse
    assert verify_bundle(bundle.path) == []
    assert (sparse.impacts, sparse.query_weights, sparse.tokenizer) == (impacts, "count", None)  # both have one


def test_an_asymmetric_bi_encoder_reads_each_side_with_its_own_modules(
    folders: dict[str, Path], tmp_path: Path
) -> None:
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
