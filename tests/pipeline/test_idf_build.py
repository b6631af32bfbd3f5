"""Bundles with IDF weights through the whole pipeline, and several bundles from one encoding."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.tokens.idf import save_idf
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from tests.support.commands import only, run, summary_of
from tests.support.models import load
from tests.support.recipes import change, copied, encoded_rows, write_recipe
from tests.support.wordings import raises

DOCUMENTS = 12
Document = dict[int, int]


@pytest.fixture(scope="module")
def idf(model_folder: Path) -> npt.NDArray[np.float32]:
    """Made-up weights, far enough apart to change which terms are kept."""
    vocab_size = TextTokenizer.from_file(model_folder / "tokenizer.json").vocab_size
    return np.random.default_rng(0).uniform(0.1, 9, vocab_size).astype(np.float32)


@pytest.fixture(scope="module")
def finished(model_folder: Path, idf: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle, and with its adapter as the trainer leaves it: beside the weights it was trained with."""
    folder = tmp_path_factory.mktemp("finished")
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), config).save_pretrained(str(folder / "adapter"))
    save_idf(folder / "adapter" / "idf.npy", idf)
    model = {"path": str(model_folder), "adapter": str(folder / "adapter")}
    encode = {"max_length": 32, "top_k": 40}
    run("build", write_recipe(folder, model, documents=DOCUMENTS, tasks={"web": "Find it"}, encode=encode))
    return folder


@pytest.fixture
def built(finished: Path, tmp_path: Path) -> Path:
    """The recipe in a copy of that folder."""
    return copied(finished, tmp_path)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Bundle, ImpactIndex]]:
    assert verify_bundle(path) == []
    bundle = Bundle.open(path)
    with bundle.sparse() as index:
        yield bundle, index


def impacts(index: ImpactIndex) -> list[Document]:
    """Every document's terms and impacts, read out of Lucene."""
    return [{int(term): impact for term, impact in row.items()} for row in index.rows(0, DOCUMENTS)]


def best(documents: list[Document], top_k: int) -> list[Document]:
    """The rule, plainly."""
    kept = [sorted(one, key=lambda term: (-one[term], term))[:top_k] for one in documents]
    return [{term: one[term] for term in sorted(terms)} for one, terms in zip(documents, kept, strict=True)]


def encoded(work: Path) -> list[Document]:
    rows = encoded_rows(work / "encode").sparse
    return [dict(zip(terms.tolist(), impacts.tolist(), strict=True)) for terms, impacts in rows]


def test_an_adapter_with_weights_makes_such_a_bundle(built: Path, tmp_path: Path, idf: npt.NDArray[np.float32]) -> None:
    with opened(tmp_path / "bundle") as (bundle, _):
        assert (bundle.manifest.sparse.query_weights, bundle.manifest.sparse.top_k) == ("idf_count", 40)
        found = bundle.idf()
        assert found is not None
        np.testing.assert_array_equal(found, idf)
    change(built, {"encode.top_k": None})
    run(*only("encode"), built, "--work", tmp_path / "all")
    assert encoded(tmp_path / "work") == best(encoded(tmp_path / "all"), 40)


def test_one_encoding_gives_bundles_of_several_sizes_and_of_both_kinds(built: Path, tmp_path: Path) -> None:
    everything = encoded(tmp_path / "work")
    for top_k in (3, 25):
        run(*only("index"), built, "--top-k", str(top_k), "--dimension", "8", "--overwrite")
        with opened(tmp_path / "bundle") as (bundle, index):
            manifest = bundle.manifest
            assert (manifest.sparse.top_k, manifest.dimension, manifest.sparse.query_weights) == (top_k, 8, "idf_count")
            assert impacts(index) == best(everything, top_k)
    made = summary_of("build", change(built, {"model.idf": None}), "--top-k", "3", "--overwrite")
    assert (made["reused"], made["encoded"]) == (DOCUMENTS, 0)
    assert not (tmp_path / "work" / "idf.npy").exists()
    with opened(tmp_path / "bundle") as (bundle, index):
        assert (bundle.manifest.sparse.query_weights, bundle.idf()) == ("count", None)
        assert impacts(index) == best(everything, 3)


def test_weights_of_the_corpus_from_the_same_encoding(
    built: Path, tmp_path: Path, idf: npt.NDArray[np.float32]
) -> None:
    change(built, {"model.idf": "corpus"})
    run("build", built, "--output", tmp_path / "corpus-weights")
    with opened(tmp_path / "corpus-weights") as (bundle, _):
        assert bundle.manifest.sparse.query_weights == "idf_count"
        found, tokenizer = bundle.idf(), bundle.vocabulary(bundle.tokenizer()).tokenizer
    assert found is not None
    assert tokenizer is not None
    documents = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    frequencies = np.zeros(len(idf))
    for document in documents:
        text = f"{document['title']} {document['text']}".strip()
        frequencies[np.unique(tokenizer.query_ids(text))] += 1
    wanted = np.log(1 + (DOCUMENTS - frequencies + 0.5) / (frequencies + 0.5))
    np.testing.assert_allclose(found, np.where(frequencies > 0, wanted, 1), rtol=1e-5)
    with opened(tmp_path / "bundle") as (bundle, _):
        np.testing.assert_array_equal(bundle.idf(), idf)


def test_an_adapter_can_say_that_its_weights_are_not_for_the_query(
    built: Path, tmp_path: Path, model_folder: Path, idf: npt.NDArray[np.float32]
) -> None:
    """Trained with plain counts and weighted table rows: the IDF is there for the rows alone."""
    settings = {"idf_rows": True, "query_weights": "count"}
    (tmp_path / "adapter" / "lightretriever.json").write_text(json.dumps(settings))
    change(built, {"index": {"table_dtype": "float32"}})
    run("build", built, "--work", tmp_path / "new", "--overwrite")
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.sparse.query_weights == "count"
    plain = load(model_folder, adapter=str(tmp_path / "adapter"))
    rows = token_rows(LanguageModel.of(plain), "Find it", tmp_path / "table")
    found = bundle.table("web").rows(np.arange(plain.vocab_size))
    np.testing.assert_allclose(found, rows * idf[:, None], rtol=1e-5, atol=1e-6)


def test_unusable_weights_are_refused_before_anything_is_written(built: Path, tmp_path: Path) -> None:
    save_idf(tmp_path / "adapter" / "idf.npy", np.ones(5, np.float32))
    with raises(RecipeError, naming="idf.npy"):
        run("build", built, "--work", tmp_path / "new", "--overwrite")
    assert not (tmp_path / "new" / "backbone.json").exists()
