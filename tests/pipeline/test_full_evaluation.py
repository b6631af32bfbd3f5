"""The evaluation with a whole model as query encoder, against its formulas computed in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from tokenizers import Tokenizer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel, Reading, log_likelihoods
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import ModelRecipe, Recipe, read_recipe
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from tests.artifacts.test_evaluate import QRELS, QUERIES, runs_in, write_dataset
from tests.support.biencoder import save_biencoder, save_static
from tests.support.commands import run
from tests.support.judged import evaluate_bundle
from tests.support.models import load
from tests.support.recipes import encoded_rows, write_recipe
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
