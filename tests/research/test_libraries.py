"""Both legs against other libraries, on small bundles and with the real libraries where they are installed. How long
anything takes is not tested."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from research.libraries.__main__ import main
from research.libraries.library import DEPTH, Query, Source, encode
from research.libraries.quality import Exact, Judged, choose, front, ratio
from research.libraries.worker import LIBRARIES, answer
from research.pages.speed_tables import RATIOS, library_tables
from tests.support.judged import write_judged, write_queries
from tests.support.tiny import make_tiny_bundle

WORDS = ["music", "player", "text", "editor", "library", "numbers", "terminal", "emulator", "python", "network", "file"]
QUERIES = [" ".join(WORDS[start : start + 3]) for start in range(len(WORDS) - 2)]
MODULES = {"usearch": "usearch", "scalable-vs": "svs"}
"""Of the libraries that may be missing."""
WIDE = {"lucene", "hnsw", "usearch", "scalable-vs"}
"""Those whose last setting finds nearly all of the exact best; BM25 ranks by something else."""
PAIRS = [(leg, name) for leg, kinds in LIBRARIES.items() for name in kinds]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Enough documents and dimensions for every index to be trained."""
    path = tmp_path_factory.mktemp("libraries") / "bundle"
    return make_tiny_bundle(path, documents=2600, dimension=256, factory="Flat")


@pytest.fixture(scope="module")
def source(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(bundle, tmp_path_factory.mktemp("work"), QUERIES * 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_queries(tmp_path, QUERIES).parent


@pytest.mark.parametrize(("leg", "name"), PAIRS)
def test_every_library_finds_documents_and_its_index_again(source: Source, leg: str, name: str) -> None:
    if name in MODULES and find_spec(MODULES[name]) is None:
        pytest.skip(f"{name} is not installed")
    library, queries = LIBRARIES[leg][name], encode(source.bundle, QUERIES)
    exact = getattr(Exact, leg)(source, queries)
    build = library.builds(source.bundle.manifest.documents, source.bundle.manifest.dimension)[0]
    index = library.open(source, build)
    first = answer(index, index.settings[-1], queries)
    assert len(first["seconds"]) == len(first["found"]) == len(queries)
    for number, found in enumerate(first["found"]):
        assert len(set(found)) == len(found) <= DEPTH
        assert exact.recall(number, found) >= (0.9 if name in WIDE else 0.01)
    again = library.open(source, build)
    assert answer(again, again.settings[-1], queries)["found"] == first["found"]


def test_words_are_compared_too(word_bundle: Bundle, tmp_path: Path) -> None:
    source = Source(word_bundle, tmp_path)
    queries = encode(word_bundle, QUERIES)
    exact = Exact.sparse(source, queries)
    index = LIBRARIES["sparse"]["lucene"].open(source, {})
    found = answer(index, {}, queries)["found"]
    assert [exact.recall(number, one) for number, one in enumerate(found)] == [1.0] * len(QUERIES)


def test_a_query_survives_json(source: Source) -> None:
    (query,) = encode(source.bundle, QUERIES[:1])
    again = Query.of(json.loads(json.dumps(query.row())))
    assert again.terms == query.terms
    for name in ("weights", "dense"):
        assert getattr(again, name).tobytes() == getattr(query, name).tobytes()
    assert encode(source.bundle, ["", " "]) == []


def test_recall_counts_documents_as_good_as_the_last() -> None:
    scores = np.array([5, 4, 3, 3, 2], np.float32)
    exact = Exact([np.array([0, 1, 2])], lambda number, rows: scores[rows])
    assert exact.recall(0, [0, 1, 3]) == 1.0
    assert exact.recall(0, [0, 0, 4]) == pytest.approx(1 / 3)
    assert exact.recall(0, []) == 0.0
    assert Exact([np.array([], int)], exact.scores).recall(0, [3]) == 1.0


def test_ndcg_of_judged_queries() -> None:
    judged = Judged([{"b": 1}, {"a": 1}], ["a", "b"])
    assert judged.ndcg({0: [1, 0], 1: [0]}) == 1.0
    assert judged.ndcg({0: [0, 1]}) == pytest.approx(1 / np.log2(3))


def rows(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"p50_ms": p50, "recall@100": recall} for p50, recall in pairs]


def test_the_fastest_of_the_good_settings_is_chosen() -> None:
    curve = rows((1, 0.9), (3, 0.99), (2, 0.96), (4, 0.99))
    assert choose(curve, "recall@100", 0.95) == {"p50_ms": 2, "recall@100": 0.96, "equal": True}
    # None is good enough: the best, and of equals the fastest.
    assert choose(curve, "recall@100", 1.0) == {"p50_ms": 3, "recall@100": 0.99, "equal": False}
    assert front(curve, "recall@100") == rows((1, 0.9), (2, 0.96), (3, 0.99))


def test_a_ratio_and_its_interval() -> None:
    assert ratio([[1.0, 3.0]] * 4, [[4.0, 4.0]] * 4, np.mean) == (0.5, 0.5, 0.5)
    value, low, high = ratio([[1.0], [2.0], [3.0]], [[2.0], [2.0], [2.0]], np.mean)
    assert low < value == 1.0 < high


def test_goals() -> None:
    least = RATIOS["dense_ood"]
    assert least.goal == "≥ 1.3"
    assert least.reached({"qps": 1.2, "equal": True}) == "no"
    assert least.reached({"qps": 1.4, "equal": True}) == "yes"
    both = RATIOS["sparse_vs_bm25"]
    assert both.goal == "≤ 1.1"
    assert both.reached({"p50": 1.0, "p99": 1.2, "equal": True}) == "no"
    assert both.reached({"p50": 1.0, "p99": 1.1, "equal": False}).startswith("yes; no setting")


def command(bundle: Bundle, folder: Path, *options: str) -> list[str]:
    paths = ["--queries", str(folder), "--layout", str(folder), "--work", str(folder / "work")]
    few = ["--turns", "2", "--warm-up", "1", "--questions", "2", "--tuning", "3"]
    return [str(bundle.path), *paths, "--results", str(folder / "speed.json"), *few, *options]


@pytest.mark.slow
def test_one_command_compares_and_records(bundle: Bundle, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "lucene,bm25,query-aware,hnsw"]
    assert main(command(bundle, folder, *options, "--build")) == 0
    assert capsys.readouterr().out.count(": built") == 4
    assert main(command(bundle, folder, *options)) == 0
    found = {(row["key"], row["setting"]): row for row in json.loads((folder / "speed.json").read_text())["rows"]}
    label = "tiny, 2,600 documents"
    sparse = f"{label}, learned impacts of tokens"
    bm25, lucene = found["sparse_vs_bm25", sparse], found["library", f"lucene, {sparse}"]
    assert bm25["p50"] == pytest.approx(lucene["p50"] / found["library", f"bm25, {sparse}"]["p50"], rel=1e-2)
    assert bm25["p50_interval"][0] <= bm25["p50"] <= bm25["p50_interval"][1]
    assert lucene["recall@100"] == 1.0
    assert found["dense_ood", label]["against"] == "hnsw"
    assert found["library", f"hnsw, {label}"]["chosen"]["build"] == {"factory": "HNSW32,SQ8"}
    (table,) = library_tables(folder / "speed.json")
    assert "| Lucene, impacts ÷ BM25 on words (tiny, 2,600 documents, learned impacts of tokens) | bm25 | p50 " in table
    assert str(folder) not in (folder / "speed.json").read_text()


@pytest.mark.slow
def test_judged_queries_choose_by_ndcg(bundle: Bundle, folder: Path) -> None:
    with bundle.sparse() as index:
        names = index.ids()
    queries = {str(number): text for number, text in enumerate(QUERIES)}
    write_judged(folder, queries, {number: {names[int(number)]: 1} for number in queries}, "dev")
    assert main(command(bundle, folder, "--judged", "--only", "lucene,bm25")) == 0
    found = json.loads((folder / "speed.json").read_text())["rows"]
    measured = {row["name"]: row["ndcg@10"] for row in found if row["key"] == "library"}
    assert set(measured) == {"lucene", "bm25"}
    assert all(0 <= value <= 1 for value in measured.values())


def test_what_cannot_run_is_recorded_with_its_reason(
    tiny_bundle: Bundle, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 120 documents are too few for the centroids of inverted lists.
    assert main(command(tiny_bundle, folder, "--only", "ivf-pq", "--turns", "0")) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "needs at least" in row["reasons"]["IVF8,PQ8x4fsr,Refine(SQ8)"]
