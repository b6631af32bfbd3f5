"""`evaluate_bundle` over the tiny bundle, against the service's rankings; measures, runs and judged queries, against
values worked out by hand."""

import json
import math
import os
import shutil
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError, CorpusError, RecipeError
from lightretriever.artifacts.evaluation.evaluate import fusion_of
from lightretriever.artifacts.evaluation.mteb import BundleSearch
from lightretriever.artifacts.evaluation.runs import (
    JudgedQueries,
    measure,
    ndcg_per_query,
    ranking,
    read_judged,
    relevant_but_missing,
    without_own,
)
from lightretriever.artifacts.evaluation.searching import SearchMode
from lightretriever.service.commands.evaluation import open_searcher
from lightretriever.service.schemas import LinearFusion, Weights
from tests.support.commands import run_command
from tests.support.judged import evaluate_bundle, write_judged
from tests.support.tampering import copy_of, edit_manifest, resign
from tests.support.tiny import BundleOf, tiny_documents
from tests.support.wordings import raises

SYSTEMS = ["dense", "sparse", "hybrid", "bm25"]
QUERIES = {
    "q1": "play music from the terminal",
    "q2": "modal text editor with plugins",
    "doc-15": "chess games over the network",  # the id of a document, too
    "q4": "Ελληνικά 🎵",
    "q5": "scientific papers",
}
QRELS = {
    "q1": {"music": 2, "repeat": 1, "editor": 0},
    "q2": {"editor": 1},
    "doc-15": {"doc-15": 1, "doc-20": 1},
    "q4": {"greek": 1, "unicode": 1},
    "q5": {f"doc-{i}": 1 for i in range(30, 60)},
}


def write_dataset(folder: Path, qrels: dict[str, dict[str, int]]) -> Path:
    return write_judged(folder, QUERIES | {"unjudged": "nobody judged this"}, qrels)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "toy", QRELS)


@pytest.fixture(scope="module")
def evaluated(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("evaluate")
    dataset = write_dataset(folder / "toy", QRELS)
    return evaluate_bundle(tiny_bundle.path, dataset, folder / "out"), folder / "out"


def runs_in(folder: Path, system: str) -> dict[str, list[str]]:
    rankings: dict[str, list[str]] = {query: [] for query in QUERIES}
    for line in (folder / f"{system}.trec").read_text(encoding="utf-8").splitlines():
        query, _, document, rank, _, tag = line.split(" ")
        rankings[query].append(document)
        assert int(rank) == len(rankings[query])
        assert tag == f"tiny-{system}"
    return rankings


@pytest.mark.parametrize("system", ["dense", "sparse", "hybrid"])
def test_run_files_hold_the_rankings_of_the_service(
    evaluated: tuple[dict[str, Any], Path], tiny_bundle: Bundle, system: SearchMode
) -> None:
    asked: Any = {"task": "default", "mode": system, "k": 100, "candidates": 100, "fusion": None}
    with open_searcher(tiny_bundle) as searcher:
        found = {query: searcher.search(text, **asked) or [] for query, text in QUERIES.items()}
    expected = {query: [name.replace(" ", "%20") for name, _ in hits] for query, hits in found.items()}
    assert runs_in(evaluated[1], system) == expected
    assert 0 < evaluated[0]["metrics"][system]["nDCG@10"] < 1


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_run_file_alone_gives_the_same_measures(evaluated: tuple[dict[str, Any], Path], system: str) -> None:
    """Read back, the scores order the documents as the ranks do."""
    evaluation, folder = evaluated
    qrels = [ir_measures.Qrel(query, document, grade) for query, g in QRELS.items() for document, grade in g.items()]
    lines = (folder / f"{system}.trec").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines]
    run = [ir_measures.ScoredDoc(query, document, float(score)) for query, _, document, _, score, _ in rows]
    measures = {"nDCG@10": ir_measures.nDCG @ 10, "MRR@10": ir_measures.RR @ 10, "MAP": ir_measures.AP}
    measures |= {f"R@{k}": ir_measures.R @ k for k in (10, 20, 50, 100)}
    found = ir_measures.calc_aggregate(measures.values(), qrels, run)
    expected = {name: found[measure] for name, measure in measures.items()}
    assert evaluation["metrics"][system] == pytest.approx(expected)


def test_the_report_says_what_was_measured(evaluated: tuple[dict[str, Any], Path], tiny_bundle: Bundle) -> None:
    evaluation, folder = evaluated
    report = json.loads((folder / "evaluation.json").read_bytes())
    assert report == evaluation
    assert list(report["metrics"]) == SYSTEMS
    assert report["bundle"]["digest"] == tiny_bundle.manifest.digest
    assert report["dataset"] | {"sha256": None} == {
        "name": "toy",
        "split": "test",
        "queries": 5,
        "judgments": 38,
        "relevant_judgments": 37,
        "queries_without_text": 0,
        "queries_without_judgments": 1,
        "relevant_documents_missing_in_bundle": 0,
        "sha256": None,
    }
    assert report["settings"]["task"] == "default"
    assert (
        report["settings"]["fusion"]["hybrid"]
        == LinearFusion(weights=Weights(dense=0.7, sparse=0.3), normalization="evidence", feedback=0.5).model_dump()
    )
    assert report["warnings"] == []
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["evaluation.json", *(f"{system}.trec" for system in SYSTEMS)]
    )


def test_a_bundle_of_words(
    bundle_of: BundleOf, evaluated: tuple[dict[str, Any], Path], dataset: Path, tmp_path: Path
) -> None:
    """Its impacts rank as Lucene's own BM25 does, up to ties that rounding makes."""
    found = evaluate_bundle(bundle_of("words").path, dataset, tmp_path / "out")
    assert list(found["metrics"]) == SYSTEMS
    assert found["metrics"]["bm25"] == evaluated[0]["metrics"]["bm25"]
    assert found["metrics"]["sparse"]["R@100"] == pytest.approx(found["metrics"]["bm25"]["R@100"])
    assert found["metrics"]["sparse"]["nDCG@10"] == pytest.approx(found["metrics"]["bm25"]["nDCG@10"], abs=0.02)
    assert found["metrics"]["sparse"] != evaluated[0]["metrics"]["sparse"]
    assert found["bundle"]["sparse"]["vocabulary"] == "words"


def test_a_bundle_without_a_dense_leg_is_evaluated_by_the_other(
    bundle_of: BundleOf, dataset: Path, tmp_path: Path
) -> None:
    bundle = bundle_of("words", dense=False)
    found = evaluate_bundle(bundle.path, dataset, tmp_path / "out")
    assert list(found["metrics"]) == ["sparse", "bm25"]
    assert found["settings"]["fusion"]["hybrid"]["weights"] == {"dense": 0.0, "sparse": 1.0}
    assert found["bundle"]["dense"] is None
    with raises(RecipeError, naming="query-model"):
        evaluate_bundle(bundle.path, dataset, tmp_path / "none", only=["hybrid", "sparse"])


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_given_vectors_are_searched_as_the_service_searches_a_text(tiny_bundle: Bundle, mode: SearchMode) -> None:
    """The vectors of the bundle itself: documents, their order and scores are those of a search for the text."""
    fusion = fusion_of(tiny_bundle.manifest)
    tokenizer = tiny_bundle.tokenizer()
    with open_searcher(tiny_bundle) as searcher:
        for text in QUERIES.values():
            sparse = searcher.terms(text, "default")
            assert sparse is not None
            rows = tiny_bundle.table("default").rows(np.array(tokenizer.query_ids(text)))
            dense = rows.mean(axis=0, dtype=np.float64)
            query = replace(sparse, dense=(dense / np.linalg.norm(dense)).astype(np.float32))
            asked: Any = {"task": "default", "mode": mode, "k": 20, "candidates": 30, "fusion": fusion}
            found = searcher.with_vectors({text: query}).search(text, **asked)
            expected = searcher.search(text, **asked)
            assert found is not None
            assert expected is not None
            assert [name for name, _ in found] == [name for name, _ in expected]
            assert dict(found) == pytest.approx(dict(expected), abs=1e-5)


def test_a_query_without_a_vector_has_no_answer(tiny_bundle: Bundle) -> None:
    asked: Any = {"task": "default", "k": 5, "candidates": 5, "fusion": fusion_of(tiny_bundle.manifest)}
    with open_searcher(tiny_bundle) as searcher:
        sparse = searcher.terms("play music", "default")
        assert sparse is not None
        given = searcher.with_vectors({"play music": sparse})
        assert given.search("play music", mode="dense", **asked) is None
        assert given.search("play music", mode="hybrid", **asked) is None
        assert given.search("play music", mode="sparse", **asked)
        assert searcher.terms("", "default") is None


def test_another_task_gives_another_dense_ranking(
    tiny_bundle: Bundle, evaluated: tuple[dict[str, Any], Path], dataset: Path, tmp_path: Path
) -> None:
    found = evaluate_bundle(tiny_bundle.path, dataset, tmp_path / "out", task="fact", only=["dense", "hybrid-paper"])
    assert found["metrics"]["dense"] != evaluated[0]["metrics"]["dense"]
    assert found["settings"]["fusion"]["hybrid-paper"]["normalization"] == "paper"


def test_what_lowers_the_measures_is_warned_of(tiny_path: Path, tmp_path: Path) -> None:
    bundle = copy_of(tiny_path, tmp_path)
    edit_manifest(bundle, lambda record: record["corpus"].update(sha256="0" * 64))
    dataset = write_dataset(tmp_path / "toy", QRELS | {"q2": {"editor": 1, "gone": 1}, "lost": {"music": 1}})
    (dataset / "corpus.jsonl").write_bytes(b"".join(document.raw + b"\n" for document in tiny_documents()))
    report = evaluate_bundle(bundle, dataset, tmp_path / "out")
    assert report["dataset"]["relevant_documents_missing_in_bundle"] == 1
    assert report["dataset"]["queries_without_text"] == 1
    missing, lost, other = report["warnings"]
    assert "another corpus file (SHA-256 0000" in other
    assert "1 relevant documents are not in the bundle and count as not found: gone." in missing
    assert "1 judged queries have no text and are left out: lost." in lost


def test_queries_that_can_not_be_encoded_count_as_zero(tiny_path: Path, dataset: Path, tmp_path: Path) -> None:
    bundle = copy_of(tiny_path, tmp_path)
    np.save(bundle / "tables" / "default.npy", np.zeros((400, 16), dtype=np.float16))
    resign(bundle)
    found = evaluate_bundle(bundle, dataset, tmp_path / "out")
    assert set(found["metrics"]["dense"].values()) == {0.0}
    assert found["metrics"]["sparse"]["nDCG@10"] > 0
    assert found["queries_without_answer"]["dense"] == list(QUERIES)
    assert any("dense: 5 queries can't be encoded and count as 0: q1, q2" in text for text in found["warnings"])


@pytest.mark.parametrize("name", ["evaluation.json", "dense.trec"])
def test_a_signal_while_results_are_written_stops_nothing(
    tiny_path: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    replace = os.replace

    def replace_and_signal(source: str | Path, destination: str | Path) -> None:
        replace(source, destination)
        if Path(destination).name == name:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(os, "replace", replace_and_signal)
    done = run_command("evaluate", tiny_path, dataset, "--output", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == str(tmp_path / "out" / "evaluation.json")
    assert "stopped" not in done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"evaluation.json", *(f"{system}.trec" for system in SYSTEMS)}


def test_single_queries_average_to_the_measure() -> None:
    qrels = {"a": {"d1": 1, "d2": 1}, "b": {"d1": 1}, "none": {"d9": 1}}
    run = {"a": [("d1", 2.0), ("d3", 1.0)], "b": [("d2", 3.0), ("d1", 2.0)], "unjudged": [("d1", 1.0)]}
    found = ndcg_per_query(qrels, run)
    ideal = 1 + 1 / math.log2(3)
    assert found == pytest.approx({"a": 1 / ideal, "b": 1 / math.log2(3), "none": 0.0})
    assert sum(found.values()) / 3 == pytest.approx(measure(qrels, run)["nDCG@10"])
    assert ndcg_per_query(qrels, {}) == {"a": 0.0, "b": 0.0, "none": 0.0}


def test_what_can_not_be_evaluated_is_refused_before_anything_is_searched(
    tiny_bundle: Bundle, dataset: Path, tmp_path: Path
) -> None:
    bundle, output = tiny_bundle.path, tmp_path / "out"
    with raises(RecipeError, naming="hybrid-paper"):
        evaluate_bundle(bundle, dataset, output, only=["dense", "best"])
    with raises(RecipeError, naming="100"):
        evaluate_bundle(bundle, dataset, output, depth=99)
    with raises(BundleError, naming="other"):
        evaluate_bundle(bundle, dataset, output, task="other")
    assert not output.exists()
    for inside in (bundle, bundle / "evaluation"):
        with raises(BundleError, naming="evaluation.json"):
            evaluate_bundle(bundle, dataset, inside)
    Bundle.open(bundle)


def test_a_folder_of_collections_is_evaluated_with_a_bundle_each(
    tiny_bundle: Bundle, bundle_of: BundleOf, tmp_path: Path
) -> None:
    """Two forums of one collection count as one; the mean is of collections, over the systems that all have."""
    some, words = {"q1": QRELS["q1"]}, bundle_of("words", dense=False)
    sets = (("toy", QRELS, words), ("forums/one", some, tiny_bundle), ("forums/two", {"q2": QRELS["q2"]}, tiny_bundle))
    for name, qrels, bundle in sets:
        write_dataset(tmp_path / "sets" / name, qrels)
        shutil.copytree(bundle.path, tmp_path / "bundles" / name)
    command = ["evaluate", str(tmp_path / "bundles"), str(tmp_path / "sets"), "--output"]
    result = run_command(*command, str(tmp_path / "out"), "--depth", "1000", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert list(report["collections"]) == ["forums", "toy"]
    assert list(report["metrics"]) == ["sparse", "bm25"]
    for system in report["metrics"]:
        one, two, toy = (report["parts"][name][system] for name in ("forums/one", "forums/two", "toy"))
        for measure_name in ("nDCG@10", "MAP", "R@10", "R@1000"):
            mean = ((one[measure_name] + two[measure_name]) / 2 + toy[measure_name]) / 2
            assert report["metrics"][system][measure_name] == pytest.approx(mean)
            assert summary["metrics"][system][measure_name] == pytest.approx(mean)
    assert summary["queries"] == 7
    assert (tmp_path / "out" / "forums" / "one" / "sparse.trec").is_file()
    (tmp_path / "bundles" / "toy").rename(tmp_path / "bundles" / "other")
    result = run_command(*command, str(tmp_path / "other"))
    assert result.returncode != 0
    assert "no bundle for toy" in " ".join(result.stderr.split())


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_mteb_gets_what_the_service_finds(tiny_bundle: Bundle, tmp_path: Path, mode: SearchMode) -> None:
    """By mteb's convention: `index` with the corpus' rows and the task, `search` with the queries' rows."""
    shutil.copytree(tiny_bundle.path, tmp_path / "Toy")
    corpus = [{"id": document.id, "title": document.title, "text": document.text} for document in tiny_documents()]
    queries = [{"id": name, "text": text} for name, text in QUERIES.items()]
    common: dict[str, Any] = {"task_metadata": SimpleNamespace(name="Toy"), "hf_split": "test", "hf_subset": "default"}
    common |= {"encode_kwargs": {}, "num_proc": None}
    model = BundleSearch(open_searcher, tmp_path, mode=mode)
    with raises(BundleError):
        model.search(queries, top_k=3, **common)
    model.index(corpus, **common)
    found = model.search(queries, top_k=20, **common)
    with open_searcher(tiny_bundle) as searcher:
        for name, text in QUERIES.items():
            asked: Any = {"task": "default", "mode": mode, "k": 20, "candidates": 20, "fusion": None}
            assert list(found[name].items()) == searcher.search(text, **asked)
    ranked = model.search(queries, top_k=5, top_ranked={name: ["music", "editor"] for name in QUERIES}, **common)
    assert all(set(scores) <= {"music", "editor"} for scores in ranked.values())
    last = {name: list(scores)[-1:] for name, scores in found.items()}  # far behind the first one
    assert {
        name: list(scores) for name, scores in model.search(queries, top_k=1, top_ranked=last, **common).items()
    } == last
    with raises(CorpusError, naming="elsewhere"):
        model.index([*corpus, {"id": "elsewhere", "text": "x"}], **common)
    with raises(BundleError, naming="Other"):
        model.index(corpus, **common | {"task_metadata": SimpleNamespace(name="Other")})


def test_a_document_with_the_id_of_the_query_counts_unless_it_is_dropped() -> None:
    run = {"q": [("q", 2.0), ("d", 1.0)], "r": [("q", 1.0)]}
    assert measure({"q": {"d": 1}, "r": {"q": 1}}, run)["MRR@10"] == 0.75
    assert measure({"q": {"d": 1}, "r": {"q": 1}}, without_own(run))["nDCG@10"] == 1.0
    assert without_own(run)["r"] == [("q", 1.0)]


@given(st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_rankings_descend_strictly_and_stay_at_their_scores(scores: list[float]) -> None:
    hits = [(str(i), score) for i, score in enumerate(sorted(scores, reverse=True))]
    ranked = ranking(hits)
    assert [document for document, _ in ranked] == [document for document, _ in hits]
    found = [score for _, score in ranked]
    assert all(after < before for before, after in pairwise(found))
    np.testing.assert_allclose(found, [score for _, score in hits], rtol=1e-5, atol=1e-30)


def test_only_judged_queries_are_read_in_the_order_of_their_file(tmp_path: Path) -> None:
    qrels = {"x": {"d1": 1}, "z": {"d1": 0, "d2": 2}, "w": {"d1": 1}}
    dataset = write_judged(tmp_path, {**{name: f"about {name}" for name in "zyx"}, "e": ""}, qrels)
    judged = read_judged(dataset, "test")
    assert list(judged.queries.items()) == [("z", "about z"), ("x", "about x")]
    assert judged.qrels == {"z": {"d1": 0, "d2": 2}, "x": {"d1": 1}}
    assert (judged.without_text, judged.unjudged) == (["w"], 2)
    (dataset / "qrels" / "test.tsv").write_text("x\td\t1\ne\td\t1\n")
    with raises(CorpusError, naming="queries.jsonl, line 4"):  # empty, and judged
        read_judged(dataset, "test")


@pytest.mark.parametrize(("qrels", "split"), [({"a": {"d": 1}}, "dev"), ({"c": {"d": 1}, "e": {"d": 1}}, "test")])
def test_qrels_that_are_missing_or_of_other_queries_are_an_error(
    tmp_path: Path, qrels: dict[str, dict[str, int]], split: str
) -> None:
    with raises(CorpusError):
        read_judged(write_judged(tmp_path, {"a": "b"}, qrels), split)


def test_relevant_documents_that_the_bundle_lacks_are_named_once() -> None:
    judged = JudgedQueries({}, {"q": {"a": 1, "b": 2, "c": 0}, "r": {"b": 1, "d": 1}}, [])
    assert relevant_but_missing(judged, {"a"}) == ["b", "d"]
    with raises(CorpusError, naming="a"):
        relevant_but_missing(judged, {"c"})
    with raises(CorpusError):
        relevant_but_missing(JudgedQueries({}, {"q": {"a": 0}}, []), {"a"})
