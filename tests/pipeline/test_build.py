import json
import os
import pty
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml

from lightretriever.artifacts.bundle.manifest import FusionInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import CorpusError, LightRetrieverError, ResumeError
from lightretriever.artifacts.pipeline.language_model import instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.service.cli import app
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.commands import invoke, only, run
from tests.support.models import load
from tests.support.recipes import change, write_recipe
from tests.support.states import token_states_naive
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
        index={"factory": "Flat", "table_dtype": "float32"},
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
def built(recipe: Path, finished: Path, tmp_path: Path) -> Path:
    """The recipe with a work directory and a bundle of its own, as its build left them."""
    for name in ("work", "bundle"):
        shutil.copytree(finished / name, tmp_path / name)
    return recipe


def test_one_recipe_makes_a_bundle_that_answers_as_the_model_itself(built: Path, tmp_path: Path) -> None:
    """Both legs over the finished bundle against both formulas computed by the model, for one query."""
    assert verify_bundle(tmp_path / "bundle") == []
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.documents == 30
    assert bundle.manifest.model.name == "tiny-llama"
    backbone = load(yaml.safe_load(built.read_text())["model"]["path"])
    ids = bundle.tokenizer().encode(" play music from the terminal, music")
    documents = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    dense, sparse = _scores_by_the_model(backbone, documents, ids)
    mean = bundle.table("fact").rows(ids).mean(axis=0)
    ordinals, scores = bundle.dense().search(mean / np.linalg.norm(mean), 30)
    np.testing.assert_allclose(scores, dense[ordinals], atol=2e-3)  # documents are stored with 11 bits
    with bundle.sparse() as index:
        terms, counts = np.unique(ids, return_counts=True)
        ordinals, scores = index.search([str(term) for term in terms.tolist()], counts.astype(np.float32), 30)
        np.testing.assert_allclose(scores, sparse[ordinals], atol=0.51 * len(ids))  # impacts are rounded
        assert index.ids() == [document["_id"] for document in documents]
        assert [json.loads(raw) for raw in index.documents(np.arange(30))] == documents


def _scores_by_the_model(
    backbone: Backbone, documents: list[dict[str, str]], ids: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    with torch.inference_mode():
        states = token_states_naive(backbone, instruction_prefix(backbone, TASKS["fact"]), torch.from_numpy(ids).long())
        query = torch.nn.functional.normalize(states.mean(dim=0), dim=0)
        dense, sparse = [], []
        for document in documents:
            text = f"{document['title']} {document['text']}".strip()
            framed = backbone.frame(backbone.tokenizer.encode(text)[:62].tolist())
            hidden = backbone.decoder(input_ids=torch.tensor([framed]), use_cache=False)[0][0]
            dense.append(float(torch.nn.functional.normalize(hidden[-1], dim=0) @ query))
            inner = hidden[len(backbone.prefix()) : -1]  # without [bos] and <eos>
            impacts = torch.log1p(torch.relu(inner @ backbone.head.T)).amax(dim=0).mul(100).round().numpy()
            impacts[np.argsort(-impacts, kind="stable")[50:]] = 0  # of equal ones the lower ids are kept
            sparse.append(float(impacts[ids].sum()))
    return np.array(dense), np.array(sparse)


def test_the_stages_one_by_one_make_the_same_files(built: Path, tmp_path: Path) -> None:
    run(*only("table"), built, "--work", tmp_path / "work2")
    run(*only("encode"), built, "--work", tmp_path / "work2")
    run(*only("index"), built, "--work", tmp_path / "work2", "--output", tmp_path / "bundle2")
    first, second = (Bundle.open(tmp_path / name).manifest.files for name in ("bundle", "bundle2"))
    names = [name for name in first if not name.startswith("lucene/")]  # Lucene stamps segments with a random id
    assert "dense.faiss" in names
    assert {name: first[name] for name in names} == {name: second[name] for name in names}


def test_a_bad_line_stops_the_build_or_is_counted(recipe: Path, tmp_path: Path) -> None:
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "broken"\n{"_id": "music", "text": "again"}\n')
    with raises(CorpusError, naming="corpus.jsonl, line 31"):
        run("build", recipe)
    assert "skipped: 2 bad corpus lines" in run(*only("encode"), recipe, "--skip-bad", "--work", tmp_path / "work2")
    output = run("build", recipe, "--skip-bad", "--work", tmp_path / "work2")
    assert "skipped: 2 bad corpus lines" in output
    assert 'id "music" was already used in line 1' in " ".join(output.split())
    assert Bundle.open(tmp_path / "bundle").manifest.documents == 30


def test_declared_fields_and_examples_come_from_the_recipe(built: Path, tmp_path: Path) -> None:
    change(built, {"corpus.fields": {"year": "number"}, "examples": ["a music player", "\U0001f389"]})
    run(*only("index"), built, "--overwrite")  # nothing is encoded again
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.fields == {"year": "number"}
    assert bundle.manifest.examples == ["a music player", "\U0001f389"]
    assert verify_bundle(bundle.path) == []
    years = [json.loads(line)["year"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
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


def test_words_come_from_the_recipe(built: Path, tmp_path: Path) -> None:
    first = Bundle.open(tmp_path / "bundle").manifest
    settings = {"vocabulary": "words", "k1": 1.2, "b": 0.75}
    change(built, {"expand": False, **{f"index.{name}": value for name, value in settings.items()}})
    run(*only("index"), built, "--overwrite")  # nothing is encoded again
    bundle = Bundle.open(tmp_path / "bundle")
    sparse = bundle.manifest.sparse
    assert (first.sparse.vocabulary, sparse.vocabulary, sparse.language) == ("tokens", "words", "english")
    assert (sparse.k1, sparse.b, sparse.quantization, sparse.expansion) == (1.2, 0.75, 4000, None)
    assert bundle.manifest.fusion == FusionInfo(dense=0.5, sparse=0.5)
    assert bundle.manifest.ids_sha256 == first.ids_sha256
    assert verify_bundle(bundle.path) == []


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
        ({"index.factory": "Nonsense"}, "Nonsense"),
        ({"index.queries": "{tmp}/none.jsonl"}, "none.jsonl"),
        ({"index.factory": "IVF8,Flat"}, "needs at least 312 documents to train them, found 30"),
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
def test_a_mistake_is_found_before_anything_is_encoded(
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


def test_the_whole_build_runs_on_a_terminal(recipe: Path, tmp_path: Path) -> None:
    """The line that changes is another path than the lines of a log; so it is watched on a real pseudo-terminal."""
    master, slave = pty.openpty()
    with ThreadPoolExecutor(1) as reader:
        said = reader.submit(read_terminal, master)
        with os.fdopen(slave, "w") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
            app(["build", str(recipe)], standalone_mode=False)
        output = said.result()
    for stage in (b"table", b"encode", b"index"):
        assert stage in output
    assert b"30/30" in output
    assert (tmp_path / "bundle" / "manifest.json").is_file()


def read_terminal(master: int) -> bytes:
    """What was written to a pseudo-terminal until it was closed."""
    output = b""
    with os.fdopen(master, "rb", buffering=0) as terminal, suppress(OSError):  # a closed terminal reads as an error
        while chunk := terminal.read(65536):
            output += chunk
    return output


def test_a_missing_extra_is_one_line(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("lightretriever.artifacts.pipeline")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("lightretriever.artifacts.pipeline")  # it comes back with all that it has
    result = invoke(*only("table"), recipe)
    assert "needs torch" in str(result.exception)
    assert "lightretriever-search[pipeline]" in str(result.exception)
