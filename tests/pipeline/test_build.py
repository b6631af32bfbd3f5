import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lightretriever.artifacts.bundle.manifest import FusionInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import CorpusError, LightRetrieverError, ResumeError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.commands import invoke, only, run
from tests.support.recipes import change, copied, write_recipe
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
