"""Measures, runs and judged queries, against values worked out by hand."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.evaluation.runs import (
    JudgedQueries,
    measure,
    ranking,
    read_judged,
    relevant_but_missing,
    without_own,
    write_run,
)
from tests.support.judged import write_judged
from tests.support.wordings import raises


def test_a_document_with_the_id_of_the_query_counts() -> None:
    assert measure({"7": {"7": 1}}, {"7": [("7", 1.0)]})["nDCG@10"] == 1.0
    assert measure({"7": {"8": 1}}, {"7": [("7", 1.0), ("8", 0.5)]})["MRR@10"] == 0.5


def test_hits_with_the_id_of_the_query_can_be_dropped() -> None:
    run = without_own({"q": [("q", 2.0), ("d", 1.0)], "r": [("q", 1.0)]})
    assert run == {"q": [("d", 1.0)], "r": [("q", 1.0)]}
    assert measure({"q": {"d": 1}, "r": {"q": 1}}, run)["nDCG@10"] == 1.0


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")])
@pytest.mark.parametrize("score", [0.0, 1e-30, 0.5, 732.0, -3.0, 1e9])
def test_equal_scores_are_measured_in_the_order_they_are_shown(order: tuple[str, ...], score: float) -> None:
    run = {"q": ranking([(document, score) for document in order])}
    assert measure({"q": {"a": 1}}, run)["MRR@10"] == pytest.approx(1 / (1 + order.index("a")))


@given(st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_rankings_descend_strictly_and_stay_at_their_scores(scores: list[float]) -> None:
    hits = [(str(i), score) for i, score in enumerate(sorted(scores, reverse=True))]
    ranked = ranking(hits)
    assert [document for document, _ in ranked] == [document for document, _ in hits]
    found = [score for _, score in ranked]
    assert all(after < before for before, after in pairwise(found))
    np.testing.assert_allclose(found, [score for _, score in hits], rtol=1e-5, atol=1e-30)


def test_run_files_are_in_trec_format(tmp_path: Path) -> None:
    write_run(tmp_path / "r.trec", {"q1": [("b", 2.5), ("a b/ü", 2.0)], "q 2": []}, tag="tiny-dense")
    assert (tmp_path / "r.trec").read_text(encoding="utf-8").splitlines() == [
        "q1 Q0 b 1 2.5 tiny-dense",
        "q1 Q0 a%20b/ü 2 2 tiny-dense",
    ]


def test_only_judged_queries_are_read_in_the_order_of_their_file(tmp_path: Path) -> None:
    qrels = {"x": {"d1": 1}, "z": {"d1": 0, "d2": 2}, "w": {"d1": 1}}
    judged = read_judged(write_judged(tmp_path, {name: f"about {name}" for name in "zyx"}, qrels), "test")
    assert list(judged.queries.items()) == [("z", "about z"), ("x", "about x")]
    assert judged.qrels == {"z": {"d1": 0, "d2": 2}, "x": {"d1": 1}}
    assert (judged.without_text, judged.unjudged) == (["w"], 1)


def test_an_empty_query_is_an_error_where_it_is_judged(tmp_path: Path) -> None:
    dataset = write_judged(tmp_path, {"a": "b", "none": " ", "e": ""}, {"a": {"d": 1}})
    judged = read_judged(dataset, "test")
    assert (judged.queries, judged.unjudged) == ({"a": "b"}, 2)
    (dataset / "qrels" / "test.tsv").write_text("a\td\t1\ne\td\t1\n")
    with raises(CorpusError, naming="queries.jsonl, line 3"):
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
