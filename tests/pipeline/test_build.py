"""The whole pipeline: what a recipe asks for, mistakes, missing stages; IDF weights; bundles from one encoding."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lightretriever.artifacts.bundle.manifest import FusionInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import CorpusError, LightRetrieverError, RecipeError, ResumeError
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.tokens.idf import save_idf
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.commands import invoke, only, run, summary_of
from tests.support.models import load
from tests.support.recipes import change, copied, encoded_rows, write_recipe
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises

TASKS = {"web": "Given a web search query, retrieve relevant passages", "fact": "Given a claim, find its evidence"}


def write(folder: Path, model_folder: Path) -> Path:
    return write_recipe(
        folder,
        {"path": str(model_folder), "name": "tiny-llama", "licence": "none"},
        documents=30,
        tasks=TASKS,
        encode={"max_length": 64, "top_k": 50, "shard_size": 8},
        index={"table_dtype": "float32"},
    )


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> Path:
    return write(tmp_path, model_folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A folder where the recipe was built. Read only."""
    folder = tmp_path_factory.mktemp("finished")
    run("build", write(folder, model_folder))
    return folder


@pytest.fixture
def built(finished: Path, tmp_path: Path) -> Path:
    """The recipe in a copy of that folder."""
    return copied(finished, tmp_path)


def test_fields_examples_and_words_come_from_the_recipe(built: Path, tmp_path: Path) -> None:
    changes = {"corpus.fields": {"year": "number"}, "examples": ["a music player", "\U0001f389"], "expand": False}
    change(built, {**changes, "index.vocabulary": "words", "index.k1": 1.2, "index.b": 0.75})
    run(*only("index"), built, "--overwrite")  # nothing is encoded again
    bundle = Bundle.open(tmp_path / "bundle")
    sparse = bundle.manifest.sparse
    assert (sparse.k1, sparse.b, sparse.quantization, sparse.expansion) == (1.2, 0.75, 4000, None)
    documents = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    with bundle.sparse() as index:
        assert index.ids() == [document["_id"] for document in documents]
        assert [json.loads(raw) for raw in index.documents(np.arange(30))] == documents
    assert bundle.manifest.fields == {"year": "number"}
    assert bundle.manifest.examples == ["a music player", "\U0001f389"]
    assert verify_bundle(bundle.path) == []
    years = [document["year"] for document in documents]
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine:
        asked = {"query": "music", "k": 30, "filter": {"field": "year", "gt": 2000}}
        found = engine.search(SearchRequest.model_validate(asked)).hits
        assert engine.examples[0] == "a music player"
    assert {hit.fields["year"] for hit in found} == {year for year in years if year > 2000}
    assert len(found) == sum(year > 2000 for year in years)
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "odd", "text": "odd", "year": "last"}\n')
    with raises(CorpusError, naming="corpus.jsonl, line 31"):
        run("build", built, "--overwrite")


def test_a_recipe_without_a_dense_leg(recipe: Path, tmp_path: Path) -> None:
    change(recipe, {"index.vocabulary": "words", "index.dense": False, "index.positions": True})
    run("build", recipe)
    bundle = Bundle.open(tmp_path / "bundle")
    assert (bundle.manifest.dense, bundle.manifest.fusion) == (None, FusionInfo(sparse=1.0))
    assert bundle.manifest.sparse.expansion is not None  # the table is made, used, and not written
    assert verify_bundle(bundle.path) == []
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine:
        answer = engine.search(SearchRequest(query='music for the "terminal"'))
        assert answer.phrases == {"terminal": True}
        assert answer.hits


def test_index_says_which_stage_is_missing(built: Path, tmp_path: Path) -> None:
    with raises(ResumeError, naming="backbone.json"):
        run(*only("index"), built, "--work", tmp_path / "nothing", "--overwrite")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "other"}\n')
    with raises(ResumeError, naming="documents are not there"):
        run(*only("index"), built, "--overwrite")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "{tmp}/taken"}, "exists already"),
        ({"index.queries": "{tmp}/none.jsonl"}, "none.jsonl"),
        ({"output": "{tmp}/tiny/inside"}, "is inside the bundle"),
        ({"corpus.path": "x" * 300}, "File name too long. Look at the path"),
        ({"index.dimension": 999}, "index.dimension is 999, but the vectors of llama have 32 values"),
        ({"corpus.path": "{tmp}/nothing"}, "no corpus.jsonl or corpus.jsonl.gz there"),
        ({"corpus.path": "{tmp}/bad.jsonl"}, "line 1: not JSON"),
        ({"corpus.path": "{tmp}/empty.jsonl"}, "no document in it"),
        ({"encode.max_length": 4096}, "reads 512 positions"),
        ({"encode.impacts": "bm25", "model.idf": "corpus"}, "BM25 impacts have the IDF in themselves"),
    ],
)
def test_a_mistake_is_found_before_encoding(
    recipe: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    if "inside" in str(changes):
        make_tiny_bundle(tmp_path / "tiny", documents=12)
    texts = {key: value.replace("{tmp}", str(tmp_path)) for key, value in changes.items() if isinstance(value, str)}
    change(recipe, {**changes, **texts})
    result = invoke("build", recipe)
    assert isinstance(result.exception, LightRetrieverError)
    assert message in str(result.exception)
    begun = [file for folder in ("tables", "encode") for file in tmp_path.glob(f"work/{folder}/**/*")]
    assert begun == []  # neither tables nor shards


@pytest.mark.parametrize(
    ("key", "value"), [("tasks.web", "Another instruction"), ("encode.top_k", 20), ("encode.lowercase", False)]
)
def test_index_refuses_stages_that_were_run_with_another_recipe(built: Path, key: str, value: object) -> None:
    change(built, {key: value})
    with raises(ResumeError):
        run(*only("index"), built, "--overwrite")


def test_a_missing_extra_is_one_line(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("lightretriever.artifacts.pipeline")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("lightretriever.artifacts.pipeline")  # it comes back with all that it has
    result = invoke(*only("table"), recipe)
    assert "needs torch" in str(result.exception)
    assert "lightretriever-search[pipeline]" in str(result.exception)


DOCUMENTS = 12
Document = dict[int, int]


@pytest.fixture(scope="module")
def idf(model_folder: Path) -> npt.NDArray[np.float32]:
    """Made-up weights, far enough apart to change which terms are kept."""
    vocab_size = TextTokenizer.from_file(model_folder / "tokenizer.json").vocab_size
    return np.random.default_rng(0).uniform(0.1, 9, vocab_size).astype(np.float32)


@pytest.fixture(scope="module")
def with_weights(model_folder: Path, idf: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def weighted(with_weights: Path, tmp_path: Path) -> Path:
    """The recipe in a copy of that folder."""
    return copied(with_weights, tmp_path)


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


def test_an_adapter_with_weights_makes_such_a_bundle(
    weighted: Path, tmp_path: Path, idf: npt.NDArray[np.float32]
) -> None:
    with opened(tmp_path / "bundle") as (bundle, _):
        assert (bundle.manifest.sparse.query_weights, bundle.manifest.sparse.top_k) == ("idf_count", 40)
        found = bundle.idf()
        assert found is not None
        np.testing.assert_array_equal(found, idf)
    change(weighted, {"encode.top_k": None})
    run(*only("encode"), weighted, "--work", tmp_path / "all")
    assert encoded(tmp_path / "work") == best(encoded(tmp_path / "all"), 40)


def test_one_encoding_gives_bundles_of_several_sizes_and_of_both_kinds(weighted: Path, tmp_path: Path) -> None:
    everything = encoded(tmp_path / "work")
    for top_k in (3, 25):
        run(*only("index"), weighted, "--top-k", str(top_k), "--dimension", "8", "--overwrite")
        with opened(tmp_path / "bundle") as (bundle, index):
            manifest = bundle.manifest
            assert (manifest.sparse.top_k, manifest.dimension, manifest.sparse.query_weights) == (top_k, 8, "idf_count")
            assert impacts(index) == best(everything, top_k)
    made = summary_of("build", change(weighted, {"model.idf": None}), "--top-k", "3", "--overwrite")
    assert (made["reused"], made["encoded"]) == (DOCUMENTS, 0)
    assert not (tmp_path / "work" / "idf.npy").exists()
    with opened(tmp_path / "bundle") as (bundle, index):
        assert (bundle.manifest.sparse.query_weights, bundle.idf()) == ("count", None)
        assert impacts(index) == best(everything, 3)


def test_weights_of_the_corpus_from_the_same_encoding(
    weighted: Path, tmp_path: Path, idf: npt.NDArray[np.float32]
) -> None:
    change(weighted, {"model.idf": "corpus"})
    run("build", weighted, "--output", tmp_path / "corpus-weights")
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
    weighted: Path, tmp_path: Path, model_folder: Path, idf: npt.NDArray[np.float32]
) -> None:
    """Trained with plain counts and weighted table rows: the IDF is there for the rows alone."""
    settings = {"idf_rows": True, "query_weights": "count"}
    (tmp_path / "adapter" / "lightretriever.json").write_text(json.dumps(settings))
    change(weighted, {"index": {"table_dtype": "float32"}})
    run("build", weighted, "--work", tmp_path / "new", "--overwrite")
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.sparse.query_weights == "count"
    plain = load(model_folder, adapter=str(tmp_path / "adapter"))
    rows = token_rows(LanguageModel.of(plain), "Find it", tmp_path / "table")
    found = bundle.table("web").rows(np.arange(plain.vocab_size))
    np.testing.assert_allclose(found, rows * idf[:, None], rtol=1e-5, atol=1e-6)


def test_unusable_weights_are_refused_before_anything_is_written(weighted: Path, tmp_path: Path) -> None:
    save_idf(tmp_path / "adapter" / "idf.npy", np.ones(5, np.float32))
    with raises(RecipeError, naming="idf.npy"):
        run("build", weighted, "--work", tmp_path / "new", "--overwrite")
    assert not (tmp_path / "new" / "backbone.json").exists()
